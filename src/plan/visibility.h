// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Which keys the rows of a query tile see, by causality and window.
#pragma once

#include "plan/task.h"

namespace plait::planning {

/// Logical positions of the first and last of a set of query rows.
struct PositionRange {
  i64 low, high;
};

/// Positions p with low <= p < high are seen by some row; [full_low, full_high) by every row.
struct VisiblePositions {
  i64 low, high;
  i64 full_low, full_high;
};

inline constexpr i64 kNoLimit = i64{1} << 40;

inline VisiblePositions visible_positions(const AttentionSpec& spec, PositionRange rows) {
  VisiblePositions v{0, kNoLimit, 0, kNoLimit};
  if (spec.window_left >= 0) {
    v.low = std::max<i64>(0, rows.low - spec.window_left);
    v.full_low = std::max<i64>(0, rows.high - spec.window_left);
  }
  if (spec.mask == MaskKind::kCausal) {
    v.high = rows.high + 1;
    v.full_high = rows.low + 1;
  }
  return v;
}

/// The same as slots of a row block: visible [begin, end) and fully visible [full_begin, full_end).
struct VisibleSlots {
  i32 begin, end;
  i32 full_begin, full_end;
};

VisibleSlots visible_slots(const GroupFacts& group, const BatchFacts& batch, const RowBlock& block,
                           const VisiblePositions& visible);

/// Walks query tiles of a row block in order; knows the positions of their rows.
class TileRows {
 public:
  TileRows(const GroupFacts& group, const BatchFacts& batch, const RowBlock& block)
      : group_(group), batch_(batch), block_(block), request_(block.request) {}

  /// Positions of query rows [begin, end). Calls come in row order. May lower `end` to a request
  /// boundary, where rows on both sides see windows with unseen keys of the block between them.
  PositionRange positions(i32 begin, i32& end);

 private:
  const GroupFacts& group_;
  const BatchFacts& batch_;
  const RowBlock& block_;
  i32 request_;
};

}  // namespace plait::planning
