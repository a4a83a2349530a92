// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/driver.h"
#include "cuda/stream_checks.h"
#include "plait/attention.h"
#include "plan/planner.h"

namespace plait::cuda {

/// The living graphs, under construction or made, that hold runs of one attention: what keeps its
/// memory alive with them, and which operands their replays can read.
class Captures {
 public:
  explicit Captures(std::size_t num_groups) : num_groups_(num_groups) {}

  /// Notes that `args` is being captured, and keeps `state`, whose addresses the launch holds,
  /// alive with the graph. Throws Error{kInvalidArgument} for q, k, v or o without an address.
  void note(const Driver& driver, const CaptureInfo& info, const RunArgs& args,
            const std::shared_ptr<const void>& state);

  /// The driver's ids of the living captures, oldest first.
  std::vector<std::uint64_t> living() const;

  /// Throws Error{kMismatch} for a plan that reads operands which a living graph's runs did not
  /// bring. O(row blocks) per graph.
  void check(const Plan& plan);

 private:
  /// Owned by its graph.
  struct Capture {
    std::uint64_t id = 0;
    std::shared_ptr<const void> state;
    // Per group, bit v is set if every run of it brought the operand of view v.
    std::vector<std::uint32_t> page_ids;
    std::vector<std::uint32_t> positions;
  };

  std::shared_ptr<Capture> capture_with(std::uint64_t id) const;
  void forget_ended();

  std::size_t num_groups_;
  std::vector<std::weak_ptr<Capture>> captures_;
};

}  // namespace plait::cuda
