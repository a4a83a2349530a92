// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/visibility.h"

namespace plait::planning {
namespace {

/// First slot whose logical position is at least `position`, in a list with known positions.
i64 slot_at(const GroupFacts& group, const View& view, const RowBlock& block, i64 position) {
  const i64 page_size = group.spec->page_size;
  const i32* pages = view.positions.data() + block.page_begin;
  i64 low = 0;
  i64 high = (block.num_slots + page_size - 1) / page_size;
  // The first page that ends after `position`; all but the last page are full.
  while (low < high) {
    const i64 middle = (low + high) / 2;
    const i64 tokens = std::min<i64>(page_size, block.num_slots - middle * page_size);
    if (pages[middle] + tokens > position) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const i64 first = low * page_size;
  if (first >= block.num_slots) return block.num_slots;
  return first + std::max<i64>(0, position - pages[low]);
}

}  // namespace

VisibleSlots visible_listed_slots(const GroupFacts& group, const BatchFacts& batch,
                                  const RowBlock& block, VisiblePositions visible) {
  i64 begin = 0;
  i64 end = block.num_slots;
  i64 full_begin = 0;
  i64 full_end = block.num_slots;
  const View& view = batch.batch->views[static_cast<std::size_t>(block.view)];
  if (view.positions_at_run) {
    // All that is known: positions lie in [0, kv_len).
    if (visible.full_low > 0 || visible.full_high < block.kv_len) full_end = 0;
  } else {
    if (visible.low > 0) begin = slot_at(group, view, block, visible.low);
    if (visible.high < kNoLimit) end = slot_at(group, view, block, visible.high);
    if (visible.full_low > 0) full_begin = slot_at(group, view, block, visible.full_low);
    if (visible.full_high < kNoLimit) full_end = slot_at(group, view, block, visible.full_high);
  }
  return visible_range(begin, end, full_begin, full_end);
}

PositionRange TileRows::of_requests(i32 begin, i32& end) {
  const std::span<const i32> qo = batch_.batch->qo_indptr;
  const bool windowed = group_.spec->window_left >= 0 && group_.spec->mask == MaskKind::kCausal;
  while (qo[static_cast<std::size_t>(request_) + 1] <= begin) ++request_;
  PositionRange all{0, -1};
  VisibleSlots seen{0, 0, 0, 0};
  for (i32 r = request_, row = begin; row < end; ++r) {
    const i32 r_begin = qo[static_cast<std::size_t>(r)];
    const i32 r_end = qo[static_cast<std::size_t>(r) + 1];
    const i32 stop = std::min(r_end, end);
    if (stop <= row) continue;
    const i64 pos0 = i64{batch_.kv_len[r]} - (r_end - r_begin);
    const PositionRange rows{pos0 + (row - r_begin), pos0 + (stop - r_begin) - 1};
    if (windowed) {
      const VisibleSlots own =
          visible_slots(group_, batch_, block_, visible_positions(*group_.spec, rows));
      // A tile's keys are one range of slots, so what its rows see must be one too.
      const bool apart = row > begin && (own.begin == own.end || seen.begin == seen.end ||
                                         own.begin > seen.end || own.end < seen.begin);
      if (apart) {
        end = row;
        break;
      }
      seen = row == begin
                 ? own
                 : VisibleSlots{std::min(seen.begin, own.begin), std::max(seen.end, own.end), 0, 0};
    }
    all = row == begin ? rows
                       : PositionRange{std::min(all.low, rows.low), std::max(all.high, rows.high)};
    row = stop;
  }
  return all;
}

}  // namespace plait::planning
