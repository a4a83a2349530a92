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

/// Of a block whose positions are given for each page.
VisibleSlots visible_listed_slots(const GroupFacts& group, const BatchFacts& batch,
                                  const RowBlock& block, VisiblePositions visible);

/// [full_begin, full_end) within [begin, end), and the empty range for whatever is empty.
inline VisibleSlots visible_range(i64 begin, i64 end, i64 full_begin, i64 full_end) {
  if (begin >= end) return {0, 0, 0, 0};
  full_begin = std::max(full_begin, begin);
  full_end = std::min(full_end, end);
  if (full_begin >= full_end) full_begin = full_end = begin;
  return {static_cast<i32>(begin), static_cast<i32>(end), static_cast<i32>(full_begin),
          static_cast<i32>(full_end)};
}

// Here and inline, as what planning a batch of decodes mostly does.
inline VisibleSlots visible_slots(const GroupFacts& group, const BatchFacts& batch,
                                  const RowBlock& block, VisiblePositions visible) {
  if ((block.flags & device::kBlockCustomMask) != 0) {
    visible.full_high = std::min<i64>(visible.full_high, block.mask_pos_base);
  }
  if ((block.flags & device::kBlockHasPositions) != 0) {
    return visible_listed_slots(group, batch, block, visible);
  }
  const auto slot = [&](i64 position) {
    return std::clamp<i64>(position - block.base_pos, 0, block.num_slots);
  };
  return visible_range(slot(visible.low), slot(visible.high), slot(visible.full_low),
                       slot(visible.full_high));
}

/// Walks query tiles of a row block in order; knows the positions of their rows.
class TileRows {
 public:
  TileRows(const GroupFacts& group, const BatchFacts& batch, const RowBlock& block)
      : group_(group), batch_(batch), block_(block), request_(block.request) {}

  /// Positions of query rows [begin, end). Calls come in row order. May lower `end` to a request
  /// boundary, where rows on both sides see windows with unseen keys of the block between them.
  PositionRange positions(i32 begin, i32& end) {
    if ((block_.flags & device::kBlockSpansRequests) != 0) return of_requests(begin, end);
    const i64 first = i64{block_.pos0} + (begin - block_.row_begin);
    return {first, first + (end - begin) - 1};
  }

 private:
  PositionRange of_requests(i32 begin, i32& end);

  const GroupFacts& group_;
  const BatchFacts& batch_;
  const RowBlock& block_;
  i32 request_;
};

}  // namespace plait::planning
