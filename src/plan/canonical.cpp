// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Canonical segments. The keys of a request are numbered by one coordinate, segment_base + slot,
// whatever the views that hold them; segment s is [s * S, (s + 1) * S). A segment that one row
// block holds whole may be shared by all rows of that block. One that reaches into deeper views
// belongs to the deepest, where the rows agree on all of its keys.
#include "plan/task.h"
#include "plan/visibility.h"

namespace plait::planning {
namespace {

struct Span {
  i64 begin, end;
  i64 full_begin, full_end;
};

/// Visible coordinates of a tile. With several views there are no positions, and coordinates are
/// logical positions; with one, coordinates are slots.
Span visible_span(const GroupFacts& group, const BatchFacts& batch, const RowBlock& block,
                  i64 start, i64 stop, const VisiblePositions& visible) {
  if (batch.num_views() == 1) {
    const VisibleSlots s = visible_slots(group, batch, block, visible);
    return {s.begin, s.end, s.full_begin, s.full_end};
  }
  i64 full_high = visible.full_high;
  if ((block.flags & device::kBlockCustomMask) != 0) {
    full_high = std::min<i64>(full_high, block.mask_pos_base);
  }
  Span s{std::max(start, visible.low), std::min(stop, visible.high),
         std::max(start, visible.full_low), std::min(stop, full_high)};
  if (s.begin >= s.end) return {start, start, start, start};
  s.full_begin = std::max(s.full_begin, s.begin);
  s.full_end = std::min(s.full_end, s.end);
  if (s.full_begin >= s.full_end) s.full_begin = s.full_end = s.begin;
  return s;
}

}  // namespace

void build_canonical_tasks(const GroupFacts& group, const BatchFacts& batch, bool flat,
                           TaskList& list) {
  const std::size_t views = batch.num_views();
  const TileClass& tile = group.classes[0];
  const i64 segment = group.segment_tokens;
  const i32 g = group.group_size;
  list.count = 0;
  for (i32 domain = 0; domain < batch.num_domains; ++domain) {
    i32* view_begin = list.view_begin + static_cast<std::size_t>(domain) * (views + 1);
    for (std::size_t v = 0; v < views; ++v) {
      view_begin[v] = list.count;
      const bool last = v + 1 == views;
      if (flat && !last) continue;
      const i32 num_blocks = static_cast<i32>(batch.batch->views[v].row_indptr.size()) - 1;
      for (i32 b = 0; b < num_blocks; ++b) {
        const i32 record = batch.record(v, b, domain);
        const RowBlock& block = batch.blocks[record];
        if (block.num_rows == 0) continue;
        const i64 end = i64{block.segment_base} + block.num_slots;
        const i64 start = flat ? 0 : block.segment_base / segment * segment;
        const i64 stop = last ? end : end / segment * segment;
        const i32 fused_end = (block.row_begin + block.num_rows) * g;
        i32 fused = block.row_begin * g;
        TileRows rows(group, batch, block);
        while (fused < fused_end) {
          i32 count = std::min(fused_end - fused, tile.q_tile);
          i32 row_end = (fused + count + g - 1) / g;
          const i32 asked = row_end;
          const PositionRange positions = rows.positions(fused / g, row_end);
          if (row_end != asked) count = row_end * g - fused;
          const VisiblePositions visible = visible_positions(*group.spec, positions);
          const Span seen = visible_span(group, batch, block, start, stop, visible);
          if (seen.begin < seen.end || last) {
            Task& t = list.tasks[list.count++];
            t.block = record;
            t.fused_begin = fused;
            t.num_fused = count;
            // KV tiles begin at multiples of kv_tile of the coordinate.
            t.kv_begin = static_cast<i32>(seen.begin / tile.kv_tile * tile.kv_tile);
            t.kv_end = static_cast<i32>(seen.end);
            if (seen.begin == seen.end) t.kv_begin = t.kv_end;
            t.full_begin = static_cast<i32>(seen.full_begin);
            t.full_end = static_cast<i32>(seen.full_end);
            t.head = domain * batch.domain_heads;
            t.tile_class = 0;
            t.num_chunks = 1;
            t.chunk = 0;
            t.uneven = false;
            t.first_run = 0;
            // Folding starts at the first segment that the rows see: not here, if an outer view
            // holds keys that they see too.
            t.may_fold = start == 0 || visible.low >= start;
            t.needs_state = false;
            t.cost = item_cost(tile, t.tokens(), 0);
          }
          fused += count;
        }
      }
    }
    view_begin[views] = list.count;
    if (views > 1 && !flat) drop_covered_empty_tasks(list, view_begin, views);
  }
}

}  // namespace plait::planning
