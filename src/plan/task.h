// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The planner's own vocabulary: what a group is planned from, and tasks, the uncut work.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "core/batch_resolve.h"
#include "core/device/plan_layout.h"
#include "plait/batch.h"
#include "plait/capacity.h"
#include "plait/spec.h"
#include "plan/bounds.h"
#include "plan/planner.h"

namespace plait::planning {

using device::RowBlock;
using i32 = std::int32_t;
using i64 = std::int64_t;

/// Costs are clamped here, so that 2^27 of them still add up in 64 bits.
inline constexpr i64 kMaxCost = i64{1} << 36;

inline i32 saturate(i64 value) { return static_cast<i32>(std::min<i64>(value, INT32_MAX)); }

/// Predicted cost of `tokens` keys for one item; `state_rows` > 0 if it writes a partial state.
inline i64 item_cost(const TileClass& tile, i64 tokens, i64 state_rows) {
  // Nearly every tile is a power of two, and a division takes as long as the rest, as would
  // std::has_single_bit, which calls a function where the instruction set has no such count.
  const auto kv_tile = static_cast<std::uint32_t>(tile.kv_tile);
  const i64 last = tokens + tile.kv_tile - 1;
  const i64 tiles =
      (kv_tile & (kv_tile - 1)) == 0 ? last >> std::countr_zero(kv_tile) : last / tile.kv_tile;
  const CostModel& c = tile.cost;
  return std::min(kMaxCost, c.per_item + c.per_tile * tiles + c.per_kv_token * tokens +
                                c.per_state_row * state_rows);
}

/// A query tile of a row block with all keys of that view that its rows see, before it is cut into
/// items; the same for `head_count` heads of its domain. Coordinates are slots of the block, and
/// under canonical segments segment_base + slot.
struct Task {
  i32 block = 0;  // RowBlock record; the first five are a Piece of the whole
  i32 kv_begin = 0, kv_end = 0;
  i32 full_begin = 0, full_end = 0;
  i32 fused_begin = 0, num_fused = 0;
  i32 head = 0;
  i32 num_chunks = 1;
  i32 chunk = 0;  // coordinates per item; canonical: segments of the first item; uneven: index of
                  // its first cut
  i32 first_run = 0;  // of a task that is not whole
  std::uint8_t tile_class = 0;
  bool uneven = false;   // level cutting: items end at cuts[chunk], cuts[chunk + 1] ...
  bool may_fold = true;  // canonical: the first segments may be folded into one item
  bool needs_state = false;
  i64 cost = 0;    // of the whole task as one item
  i64 merged = 0;  // by the merges that its items take part in, per head, see GroupSummary

  /// One item that writes the output itself: nearly all are.
  bool whole() const { return num_chunks == 1 && !needs_state; }
  i32 tokens() const { return kv_end - kv_begin; }
};
static_assert(sizeof(Task) == 64);  // a line of the cache

/// Everything about one layer group that does not change between plans.
struct GroupFacts {
  const AttentionSpec* spec = nullptr;
  const PlanTarget* target = nullptr;
  Policy policy;
  bool allow_split = true;
  GroupBounds bounds;
  i32 num_classes = 1;
  std::array<TileClass, device::kMaxClasses> classes{};
  std::array<i32, device::kMaxClasses> granule{};  // first keys of items are multiples of it
  i32 num_workers = 1;
  i32 group_size = 1;
  i32 segment_tokens = 0;  // 0 unless canonical

  bool canonical() const { return segment_tokens > 0; }
};

/// RowBlock records of consecutive row blocks: first, first + stride ...
struct BlockRecords {
  i32 first, stride;
};

/// One batch while it is planned.
struct BatchFacts {
  const Batch* batch = nullptr;
  BatchCounts counts;
  ResolvedBatch resolved;
  const RowBlock* blocks = nullptr;
  const i32* kv_len = nullptr;
  const i32* parents = nullptr;
  i32 num_domains = 1;   // head domains: one, or one per KV head if a view has a head axis
  i32 domain_heads = 1;  // heads in each

  std::size_t num_views() const { return batch->views.size(); }
  /// Records of a view's row blocks for the heads of a domain.
  BlockRecords records(std::size_t view, i32 domain) const {
    const i32 begin = resolved.view_begin[view];
    if (!batch->views[view].per_kv_head) return {begin, 1};
    return {begin + domain, num_domains};
  }
  i32 record(std::size_t view, i32 block, i32 domain) const {
    const BlockRecords of = records(view, domain);
    return of.first + block * of.stride;
  }
};

/// Tasks of a batch, in order of (domain, view, row block, query tile).
struct TaskList {
  Task* tasks = nullptr;
  i32 count = 0;
  i32* view_begin = nullptr;  // [num_domains * (views + 1)]: tasks of a domain's view

  const i32* domain_views(i32 domain, std::size_t num_views) const {
    return view_begin + static_cast<std::size_t>(domain) * (num_views + 1);
  }
};

/// Cuts row blocks into query tiles and finds the keys that each sees.
void build_tasks(const GroupFacts& group, const BatchFacts& batch, TaskList& list);

/// The same under canonical segments: a segment belongs to the deepest view that it reaches.
/// `flat`: all of them belong to the last view, whatever is shared.
void build_canonical_tasks(const GroupFacts& group, const BatchFacts& batch, bool flat,
                           TaskList& list);

/// Lists the tasks once for each `heads` heads of their domain. Domains that are KV heads of their
/// own have one head, and their lists stay as they are.
void split_heads(i32 heads, BatchFacts& batch, TaskList& list);

/// Removes tasks of the last view without keys whose rows get a state from an outer view anyway.
void drop_covered_empty_tasks(TaskList& list, i32* view_begin, std::size_t views);

/// Coordinates [begin, end) of item `chunk` of a task.
struct Range {
  i32 begin, end;
};
inline Range chunk_range(const GroupFacts& group, const Task& task, const i32* cuts, i32 chunk) {
  if (task.num_chunks == 1) return {task.kv_begin, task.kv_end};
  if (task.uneven) {
    return {chunk == 0 ? task.kv_begin : cuts[task.chunk + chunk - 1],
            chunk + 1 == task.num_chunks ? task.kv_end : cuts[task.chunk + chunk]};
  }
  i64 begin = 0;
  i64 end = 0;
  if (group.canonical()) {
    const i64 first = task.kv_begin / group.segment_tokens + task.chunk - 1;
    begin = (first + chunk) * group.segment_tokens;
    end = begin + group.segment_tokens;
  } else if (group.policy.kind == PolicyKind::kFixedChunk) {
    begin = (i64{task.kv_begin} / task.chunk + chunk) * task.chunk;
    end = begin + task.chunk;
  } else {
    begin = task.kv_begin + i64{chunk} * task.chunk;
    end = begin + task.chunk;
  }
  return {chunk == 0 ? task.kv_begin : static_cast<i32>(begin),
          static_cast<i32>(std::min<i64>(end, task.kv_end))};
}

}  // namespace plait::planning
