// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Executes one step: appends the new tokens' K and V in every layer, then runs the attention of
// every layer in every arm.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "serve/arm.h"
#include "serve/batch_form.h"
#include "serve/geometry.h"
#include "serve/kv_store.h"
#include "serve/memory.h"
#include "serve/replay_options.h"
#include "serve/scheduler.h"
#include "serve/token_data.h"

namespace plait::serve {

/// Times of one arm in one step, all layers together.
struct ArmTimes {
  double attention_us = 0.0;
  double rope_us = 0.0;     // rotation as an operation of its own
  double merge_us = 0.0;    // part of attention, mean over workers
  double busy_us = 0.0;     // mean over workers of their work
  double longest_us = 0.0;  // from the first worker's start to the last one's end
};

struct StepForms {
  const BatchForm* flat = nullptr;
  const BatchForm* composed = nullptr;  // null: nothing to compose in this step
  const BatchForm* ragged = nullptr;    // null: no arm wants it
};

class StepRunner {
 public:
  StepRunner(const Trace& trace, const Geometry& geometry, const ReplayOptions& options,
             const Engine& engine, Memory& memory, std::span<const std::unique_ptr<Arm>> arms,
             std::int32_t pool_pages);

  /// `entries` in the order of the forms. Every arm has planned the step. Fills one ArmTimes per
  /// arm and returns the time of the appends in microseconds.
  double run(std::span<const StepEntry> entries, const StepForms& forms,
             std::span<const std::unique_ptr<Arm>> arms, std::span<ArmTimes> times);

  /// Largest |difference| of an arm's outputs from the baseline's so far.
  double output_difference(std::size_t arm) const { return difference_[arm]; }
  /// Sum of all baseline outputs: the same for every run of the same replay.
  double checksum() const noexcept { return checksum_; }
  std::int64_t pool_bytes() const noexcept { return pool_bytes_; }

 private:
  void describe_tokens(std::span<const StepEntry> entries, const StepForms& forms);
  void make_inputs();
  double rotate();
  double append(std::int32_t layer);
  void gather(std::span<const StepEntry> entries, const BatchForm& flat, std::int32_t layer,
              bool rotated);
  void run_arm(Arm& arm, std::size_t index, std::int32_t group, std::int32_t layer,
               ArmTimes& times);
  void compare_outputs(std::size_t num_arms);
  Tensor rows(std::byte* data, std::int32_t heads) const;

  const Trace& trace_;
  const Geometry& geometry_;
  const ReplayOptions& options_;
  const Engine& engine_;
  Memory& memory_;
  DType activation_;
  KvStore store_;
  TokenData data_;
  std::int64_t pool_bytes_;
  Mirror q_, q_rotated_, k_, k_rotated_, v_;
  std::vector<Mirror> outputs_;
  Mirror gathered_k_, gathered_v_;
  std::int64_t num_rows_ = 0;
  std::int64_t gathered_tokens_ = 0;
  double parallel_workers_ = 1.0;
  bool needs_rotated_ = false;  // some arm reads rotated queries and keys
  std::vector<std::uint64_t> tokens_;
  std::vector<std::int32_t> batch_indices_, positions_;

  // Operands of the step at hand, on the device.
  struct StepTensors {
    Tensor batch_indices, positions, page_indptr;
    std::vector<Tensor> flat_ids;  // one per view
    std::vector<Tensor> composed_ids;
  };
  StepTensors step_;
  std::array<IndexList, 4 + kMaxViews> lists_;  // memory of the above

  std::vector<double> difference_;
  double checksum_ = 0.0;
  std::int64_t turn_ = 0;
};

}  // namespace plait::serve
