// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "cpu/key_cursor.h"
#include "cpu/layer.h"
#include "cpu/scratch.h"

namespace plait::cpu {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Attends items. One per thread.
class ItemRunner {
 public:
  explicit ItemRunner(const Scratch& scratch) : scratch_(scratch) {}

  /// Attends the items of `run` for KV heads [kv_head, kv_head + count) and does the merges that
  /// they complete.
  void attend(const Layer& layer, const device::Run& run, std::int32_t kv_head, std::int32_t count);

  /// Merges the listed partial states of one head and writes the output rows.
  void merge(const Layer& layer, const device::Merge& merge, std::int32_t kv_head);

  /// Time spent in merges since the last call, nanoseconds; 0 unless `measure` was set.
  void measure_merges(bool measure) noexcept { measure_merges_ = measure; }
  std::int64_t take_merge_ns() noexcept { return std::exchange(merge_ns_, 0); }

 private:
  void attend_head(const Layer& layer, const device::Run& run, std::int32_t kv_head);
  void attend_heads(const Layer& layer, const device::Run& run, std::int32_t kv_head, int count);
  void finish_merges(const Layer& layer, const device::Run& run, std::int32_t kv_head);
  /// Merges the partial states of one row into the scratch's o; returns their lse (0 for a sum).
  float merge_row(const Layer& layer, const device::Merge& merge, std::int32_t head_offset,
                  std::int32_t row);
  void load_rows(const Layer& layer, const device::Run& run, std::int32_t kv_head, int first,
                 int count, int slot);
  void place_rows(const Layer& layer, const device::RowBlock& block);
  void transpose_queries(const Layer& layer);
  void process_tile(const Layer& layer, const KeyTile& tile);
  void stream_tile(const Layer& layer, const KeyTile& tile, int heads);
  void load_keys(const Layer& layer, const KeyTile& tile);
  void shape_logits(const Layer& layer, const KeyTile& tile);
  void apply_custom_mask(const Layer& layer, const KeyTile& tile);
  void fold_values(const Layer& layer, const KeyTile& tile, const float* values, std::ptrdiff_t ld,
                   bool finite, bool masked);
  void begin_segment(const Layer& layer);
  void end_segment(const Layer& layer);
  void write_rows(const Layer& layer, const device::Run& run, int first);
  void write_output(const Layer& layer, std::int32_t q_row, std::int32_t qo_head, float* o,
                    float lse);

  Scratch scratch_;
  KeyCursor cursor_;
  std::int32_t kv_head_ = 0;
  int rows_ = 0;         // of the current query tile, of one head
  int base_ = 0;         // their first slot in the arrays below
  int padded_rows_ = 0;  // to lanes
  bool transposed_ = false;
  bool folded_any_ = false;
  bool measure_merges_ = false;
  std::int64_t merge_ns_ = 0;

  alignas(64) float m_[kQueryTile];
  alignas(64) float l_[kQueryTile];
  alignas(64) float alpha_[kQueryTile];
  alignas(64) float lse_[kQueryTile];
  alignas(64) float slopes_[kQueryTile];
  alignas(64) std::int32_t q_row_[kQueryTile];
  alignas(64) std::int32_t qo_head_[kQueryTile];
  alignas(64) std::int32_t pos_[kQueryTile];
  alignas(64) std::int32_t lo_[kQueryTile];
  alignas(64) std::int32_t hi_[kQueryTile];
  // Only filled for a user's variant.
  std::int32_t request_[kQueryTile];
  std::int32_t qo_len_[kQueryTile];
  std::int32_t kv_len_[kQueryTile];
};

}  // namespace plait::cpu
