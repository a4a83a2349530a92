// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/task.h"
#include "plan/visibility.h"

namespace plait::planning {
namespace {

/// Smallest class that holds `rows` fused rows, else the largest.
i32 class_of(const GroupFacts& group, i64 rows) {
  i32 c = 0;
  while (c + 1 < group.num_classes && group.classes[static_cast<std::size_t>(c)].q_tile < rows) ++c;
  return c;
}

/// The class of every tile when tile_per_item is off.
i32 average_class(const GroupFacts& group, const BatchFacts& batch) {
  i64 blocks = 0;
  const View& view = batch.batch->views.back();
  for (std::size_t b = 0; b + 1 < view.row_indptr.size(); ++b) {
    blocks += view.row_indptr[b + 1] > view.row_indptr[b] ? 1 : 0;
  }
  const i64 rows = batch.counts.total_q * group.group_size;
  return class_of(group, blocks == 0 ? 1 : (rows + blocks - 1) / blocks);
}

i32 align_down(i32 value, i32 granule) { return value == 0 ? 0 : value - value % granule; }

/// True if the rows of a tile are covered by the tasks of one outer view.
bool covered(const Task* begin, const Task* end, const Task*& cursor, i32 first, i32 last) {
  if (cursor < begin) cursor = begin;
  while (cursor < end && cursor->fused_begin + cursor->num_fused <= first) ++cursor;
  const Task* t = cursor;
  i32 reached = first;
  while (t < end && t->fused_begin <= reached && reached < last) {
    reached = std::max(reached, t->fused_begin + t->num_fused);
    ++t;
  }
  return reached >= last;
}

struct Builder {
  const GroupFacts& group;
  const BatchFacts& batch;
  TaskList& list;
  i32 fixed_class;                                   // -1: per tile
  std::array<i32, device::kMaxClasses> tile_rows{};  // 0: tiles of the class end within rows

  /// Whether every tile holds whole rows; fills tile_rows.
  bool tiles_hold_rows() {
    bool all = true;
    for (std::size_t c = 0; c < static_cast<std::size_t>(group.num_classes); ++c) {
      const i32 q_tile = group.classes[c].q_tile;
      if (q_tile % group.group_size == 0) tile_rows[c] = q_tile / group.group_size;
      all &= tile_rows[c] > 0;
    }
    return all;
  }
  /// Whether every row sees the keys of its request from the first to some last one.
  bool sees_prefixes() const {
    return group.spec->window_left < 0 && group.spec->mask != MaskKind::kCustom &&
           !batch.counts.has_positions && !batch.resolved.spans_requests;
  }

  /// Where rows see prefixes: the tasks of blocks that are one tile of the first class, up to the
  /// first block that is not, which is returned. What a batch of decodes consists of: nothing to
  /// divide, little to compare, and in locals what the tasks that are written cannot change.
  i32 decode_tasks(BlockRecords records, i32 b, i32 num_blocks, i32 head) {
    const TileClass tile = group.classes[0];
    const i32 group_size = group.group_size;
    const bool causal = group.spec->mask == MaskKind::kCausal;
    i32 record = records.first + b * records.stride;
    Task* out = list.tasks + list.count;
    for (; b < num_blocks; ++b, record += records.stride, ++out) {
      const RowBlock& block = batch.blocks[record];
      const i32 count = block.num_rows * group_size;
      i64 end = block.num_slots;
      i64 full_end = end;
      if (causal) {
        const i64 first = i64{block.pos0} + 1 - block.base_pos;  // keys that the first row sees
        end = std::min(end, first + block.num_rows - 1);
        full_end = std::min(end, first);
      }
      if (count > tile.q_tile || count == 0 || end <= 0) break;
      Task t;
      t.block = record;
      t.fused_begin = block.row_begin * group_size;
      t.num_fused = count;
      t.kv_end = static_cast<i32>(end);
      t.full_end = static_cast<i32>(std::max<i64>(full_end, 0));
      t.head = head;
      t.cost = item_cost(tile, end, 0);
      *out = t;
    }
    list.count = static_cast<i32>(out - list.tasks);
    return b;
  }

  /// The tasks of a block where rows see prefixes and `tile_rows` fill a tile of each class.
  void prefix_tasks(const RowBlock& block, i32 record, i32 head, bool keep_empty) {
    const i32 g = group.group_size;
    const bool causal = group.spec->mask == MaskKind::kCausal;
    const i64 slots = block.num_slots;
    const i64 seen_by_first = i64{block.pos0} + 1 - block.base_pos;
    Task* out = list.tasks + list.count;
    for (i32 row = 0, rows = 0; row < block.num_rows; row += rows) {
      const i32 left = block.num_rows - row;
      const i32 c = class_of(group, i64{left} * g);
      const std::size_t k = static_cast<std::size_t>(c);
      rows = std::min(left, tile_rows[k]);
      i64 end = slots;
      i64 full_end = end;
      if (causal) {
        full_end = std::clamp<i64>(seen_by_first + row, 0, slots);
        end = std::clamp<i64>(seen_by_first + row + rows - 1, 0, slots);
      }
      if (end == 0 && !keep_empty) continue;
      Task t;
      t.block = record;
      t.fused_begin = (block.row_begin + row) * g;
      t.num_fused = rows * g;
      t.kv_end = static_cast<i32>(end);
      t.full_end = static_cast<i32>(full_end);
      t.head = head;
      t.tile_class = static_cast<std::uint8_t>(c);
      t.cost = item_cost(group.classes[k], end, 0);
      *out++ = t;
    }
    list.count = static_cast<i32>(out - list.tasks);
  }

  void block_tasks(const RowBlock& block, i32 record, i32 head, bool keep_empty) {
    if (block.num_rows == 0) return;
    const i32 g = group.group_size;
    const i32 end = (block.row_begin + block.num_rows) * g;
    i32 fused = block.row_begin * g;
    TileRows rows(group, batch, block);
    while (fused < end) {
      const i32 left = end - fused;
      const i32 c = fixed_class >= 0 ? fixed_class : class_of(group, left);
      const TileClass& tile = group.classes[static_cast<std::size_t>(c)];
      i32 count = std::min(left, tile.q_tile);
      i32 row_end = (fused + count + g - 1) / g;
      const i32 asked = row_end;
      const PositionRange positions = rows.positions(fused / g, row_end);
      if (row_end != asked) count = row_end * g - fused;
      add(block, record, head, c, fused, count, positions, keep_empty);
      fused += count;
    }
  }

  void add(const RowBlock& block, i32 record, i32 head, i32 c, i32 fused, i32 count,
           PositionRange positions, bool keep_empty) {
    const VisibleSlots seen =
        visible_slots(group, batch, block, visible_positions(*group.spec, positions));
    if (seen.begin == seen.end && !keep_empty) return;
    const std::size_t k = static_cast<std::size_t>(c);
    Task t;
    t.block = record;
    t.fused_begin = fused;
    t.num_fused = count;
    t.kv_begin = align_down(seen.begin, group.granule[k]);
    t.kv_end = seen.end;
    const bool full = seen.full_begin < seen.full_end;
    t.full_begin = full ? seen.full_begin : t.kv_begin;
    t.full_end = full ? seen.full_end : t.kv_begin;
    t.head = head;
    t.tile_class = static_cast<std::uint8_t>(c);
    t.cost = item_cost(group.classes[k], t.tokens(), 0);
    list.tasks[list.count++] = t;
  }
};

}  // namespace

void build_tasks(const GroupFacts& group, const BatchFacts& batch, TaskList& list) {
  const std::size_t views = batch.num_views();
  Builder builder{
      group, batch, list, group.policy.tile_per_item ? -1 : average_class(group, batch), {}};
  list.count = 0;
  const bool prefixes = builder.fixed_class < 0 && builder.sees_prefixes();
  const bool whole_rows = prefixes && builder.tiles_hold_rows();
  for (i32 domain = 0; domain < batch.num_domains; ++domain) {
    const i32 head = domain * batch.domain_heads;
    i32* view_begin = list.view_begin + static_cast<std::size_t>(domain) * (views + 1);
    for (std::size_t v = 0; v < views; ++v) {
      view_begin[v] = list.count;
      const bool last = v + 1 == views;
      const i32 num_blocks = static_cast<i32>(batch.batch->views[v].row_indptr.size()) - 1;
      const BlockRecords records = batch.records(v, domain);
      for (i32 b = 0; b < num_blocks; ++b) {
        if (prefixes) b = builder.decode_tasks(records, b, num_blocks, head);
        if (b == num_blocks) break;
        const i32 record = records.first + b * records.stride;
        const RowBlock& block = batch.blocks[record];
        if (whole_rows) {
          builder.prefix_tasks(block, record, head, last);
        } else {
          builder.block_tasks(block, record, head, last);
        }
      }
    }
    view_begin[views] = list.count;
    if (views > 1) drop_covered_empty_tasks(list, view_begin, views);
  }
}

void split_heads(i32 heads, BatchFacts& batch, TaskList& list) {
  const i32 copies = batch.domain_heads / heads;
  if (copies == 1) return;
  const i32 count = list.count;
  const std::size_t entries = batch.num_views() + 1;
  for (i32 copy = 1; copy < copies; ++copy) {
    for (i32 i = 0; i < count; ++i) {
      Task& task = list.tasks[list.count++];
      task = list.tasks[i];
      task.head += copy * heads;
    }
    for (std::size_t v = 0; v < entries; ++v) {
      list.view_begin[static_cast<std::size_t>(copy) * entries + v] =
          list.view_begin[v] + copy * count;
    }
  }
  batch.num_domains = copies;
  batch.domain_heads = heads;
}

void drop_covered_empty_tasks(TaskList& list, i32* view_begin, std::size_t views) {
  std::array<const Task*, kMaxViews> cursors{};
  Task* out = list.tasks + view_begin[views - 1];
  for (Task* t = out; t != list.tasks + list.count; ++t) {
    bool drop = false;
    if (t->kv_begin == t->kv_end) {
      for (std::size_t v = 0; v + 1 < views && !drop; ++v) {
        drop = covered(list.tasks + view_begin[v], list.tasks + view_begin[v + 1], cursors[v],
                       t->fused_begin, t->fused_begin + t->num_fused);
      }
    }
    if (!drop) *out++ = *t;
  }
  list.count = static_cast<i32>(out - list.tasks);
  view_begin[views] = list.count;
}

}  // namespace plait::planning
