// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/chunking.h"

namespace plait::planning {
namespace {

/// Segments of a task, and how many of them its first item folds.
void cut_canonical(const GroupFacts& group, Task& task, i64 limit) {
  task.chunk = 1;
  task.num_chunks = 1;
  if (task.tokens() == 0) return;
  const i32 segment = group.segment_tokens;
  const i32 segments = (task.kv_end - 1) / segment - task.kv_begin / segment + 1;
  i64 folded = 1;
  if (task.may_fold) {
    if (task.cost <= limit) {
      folded = segments;
    } else {
      const TileClass& tile = group.classes[static_cast<std::size_t>(task.tile_class)];
      const i64 per_segment = std::max<i64>(1, item_cost(tile, segment, 0) - tile.cost.per_item);
      folded = std::clamp<i64>((limit - tile.cost.per_item) / per_segment, 1, segments);
    }
  }
  task.chunk = static_cast<i32>(folded);
  task.num_chunks = static_cast<i32>(segments - folded + 1);
}

void cut_throughput(const GroupFacts& group, Task& task, i64 limit) {
  task.num_chunks = 1;
  task.chunk = 0;
  task.uneven = false;
  if (task.cost <= limit) return;
  const i32 kv_tile = group.classes[static_cast<std::size_t>(task.tile_class)].kv_tile;
  const i64 tiles = (i64{task.tokens()} + kv_tile - 1) / kv_tile;
  const i64 parts = std::min(tiles, (task.cost + limit - 1) / limit);
  if (parts <= 1) return;
  const i64 tiles_per_chunk = (tiles + parts - 1) / parts;
  task.chunk = static_cast<i32>(std::min<i64>(tiles_per_chunk * kv_tile, INT32_MAX));
  task.num_chunks = static_cast<i32>((tiles + tiles_per_chunk - 1) / tiles_per_chunk);
}

}  // namespace

void add_cut(CutSize& size, const BatchFacts& batch, const Task& task) {
  size.runs += task.num_chunks;
  if (!task.whole()) {
    size.state_rows += i64{task.num_chunks} * task.num_fused * batch.domain_heads;
  }
}

void mark_shared_rows(const GroupFacts& group, const BatchFacts& batch, TaskList& list) {
  const std::size_t views = batch.num_views();
  if (!group.policy.allow_write_through) {
    for (i32 i = 0; i < list.count; ++i) list.tasks[i].needs_state = true;
    return;
  }
  if (views == 1) return;
  for (i32 domain = 0; domain < batch.num_domains; ++domain) {
    const i32* begin = list.domain_views(domain, views);
    for (std::size_t a = 0; a < views; ++a) {
      for (std::size_t b = a + 1; b < views; ++b) {
        i32 i = begin[a];
        i32 j = begin[b];
        while (i < begin[a + 1] && j < begin[b + 1]) {
          Task& x = list.tasks[i];
          Task& y = list.tasks[j];
          const i32 x_end = x.fused_begin + x.num_fused;
          const i32 y_end = y.fused_begin + y.num_fused;
          if (x.fused_begin < y_end && y.fused_begin < x_end) x.needs_state = y.needs_state = true;
          if (x_end <= y_end) ++i;
          if (y_end <= x_end) ++j;
        }
      }
    }
  }
}

WholeSize measure(const BatchFacts& batch, const TaskList& list, Scratch& scratch) {
  // In locals, which what is written cannot change.
  i64* const cost_of = scratch.run_cost;
  std::uint8_t* const class_of = scratch.run_class;
  const Task* const tasks = list.tasks;
  const i32 count = list.count;
  WholeSize whole;
  i64 rows = 0;
  for (i32 i = 0; i < count;) {
    // As long as the class stays the same.
    const std::uint8_t tile_class = tasks[i].tile_class;
    const i32 first = i;
    ClassCosts sum = whole.runs.classes[tile_class];
    for (; i < count && tasks[i].tile_class == tile_class; ++i) {
      const i64 cost = tasks[i].cost;
      cost_of[i] = cost;
      class_of[i] = tile_class;
      sum.add(cost);
      rows += tasks[i].needs_state ? tasks[i].num_fused : 0;
    }
    sum.runs += i - first;
    whole.runs.classes[tile_class] = sum;
  }
  whole.runs.count = count;
  for (const ClassCosts& c : whole.runs.classes) {
    whole.total += c.total * batch.domain_heads;
    whole.largest = std::max(whole.largest, c.largest);
  }
  whole.size.runs = count;
  whole.size.state_rows = rows * batch.domain_heads;
  return whole;
}

CutSize cut_unsplit(const GroupFacts& group, const BatchFacts& batch, TaskList& list) {
  CutSize size;
  for (i32 i = 0; i < list.count; ++i) {
    Task& task = list.tasks[i];
    if (group.canonical()) {
      cut_canonical(group, task, INT64_MAX / 2);
    } else {
      task.num_chunks = 1;
      task.chunk = 0;
    }
    add_cut(size, batch, task);
  }
  return size;
}

CutSize cut_fixed(const GroupFacts& group, const BatchFacts& batch, TaskList& list) {
  CutSize size;
  const i32 chunk = group.policy.kv_chunk;
  for (i32 i = 0; i < list.count; ++i) {
    Task& task = list.tasks[i];
    task.chunk = chunk;
    task.num_chunks = 1;
    if (task.tokens() > 0) task.num_chunks = (task.kv_end - 1) / chunk - task.kv_begin / chunk + 1;
    add_cut(size, batch, task);
  }
  return size;
}

CutSize cut_to_limit(const GroupFacts& group, const BatchFacts& batch, TaskList& list, i64 limit) {
  CutSize size;
  limit = std::max<i64>(limit, 1);
  for (i32 i = 0; i < list.count; ++i) {
    Task& task = list.tasks[i];
    if (group.canonical()) {
      cut_canonical(group, task, limit);
    } else {
      cut_throughput(group, task, limit);
    }
    add_cut(size, batch, task);
  }
  return size;
}

}  // namespace plait::planning
