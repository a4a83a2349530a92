// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/bounds.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "plait/batch.h"
#include "plait/error.h"
#include "plan/ledger.h"

namespace plait::planning {
namespace {

using i64 = std::int64_t;

[[noreturn]] void refuse(const char* field, i64 value, std::string expected) {
  throw Error(ErrorCode::kInvalidArgument, field, std::to_string(value), std::move(expected));
}

void check(const char* field, i64 value, i64 low, i64 high) {
  if (value >= low && value <= high) return;
  refuse(field, value, "an integer in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
}

void check_class(const TileClass& tile, const char* name) {
  const std::string prefix(name);
  check((prefix + ".q_tile").c_str(), tile.q_tile, 1, 1 << 16);
  check((prefix + ".kv_tile").c_str(), tile.kv_tile, 1, 1 << 16);
  for (i64 value :
       {tile.cost.per_item, tile.cost.per_tile, tile.cost.per_kv_token, tile.cost.per_state_row}) {
    check((prefix + ".cost").c_str(), value, 0, 1 << 24);
  }
  check((prefix + ".cost.headroom").c_str(), tile.cost.headroom, kNoHeadroom, 1 << 12);
}

}  // namespace

std::int32_t worker_count(const PlanTarget& target, const Policy& policy) {
  return policy.num_workers > 0 ? policy.num_workers : target.num_workers;
}

std::int32_t team_heads(std::int32_t heads, std::int32_t workers) {
  const std::int32_t team = std::gcd(heads, workers);
  return workers / team >= 2 ? team : heads;
}

i64 max_blocks(const Capacity& capacity) {
  if (capacity.max_row_blocks > 0) return capacity.max_row_blocks;
  return capacity.max_requests * capacity.max_views;
}

void validate(const AttentionSpec& spec, const Capacity& capacity, const Policy& policy,
              const PlanTarget& target) {
  plait::validate(spec);
  check("capacity.max_requests", capacity.max_requests, 0, INT32_MAX);
  check("capacity.max_query_rows", capacity.max_query_rows, 0, INT32_MAX);
  check("capacity.max_kv_tokens", capacity.max_kv_tokens, 0, i64{1} << 31);
  check("capacity.max_row_blocks", capacity.max_row_blocks, 0, INT32_MAX);
  check("capacity.max_views", capacity.max_views, 1, kMaxViews);
  check("capacity.min_kv_chunk", capacity.min_kv_chunk, 0, INT32_MAX);
  if (!capacity.allow_split && capacity.max_views > 1) {
    refuse("capacity.max_views", capacity.max_views, "1 when allow_split is off");
  }
  check("plan.policy", static_cast<i64>(policy.kind), 0, static_cast<i64>(PolicyKind::kUnsplit));
  check("policy.num_workers", policy.num_workers, 0, 1 << 20);
  check("target.num_workers", target.num_workers, 1, 1 << 20);
  check("target.num_classes", target.num_classes, 1, device::kMaxClasses);
  for (int c = 0; c < target.num_classes; ++c) {
    const TileClass& tile = target.classes[static_cast<std::size_t>(c)];
    check_class(tile, "target.classes");
    if (c > 0 && tile.q_tile <= target.classes[static_cast<std::size_t>(c) - 1].q_tile) {
      refuse("target.classes.q_tile", tile.q_tile, "ascending tile classes");
    }
  }
  if (policy.kind == PolicyKind::kFixedChunk) {
    check("plan.kv_chunk", policy.kv_chunk, 1, INT32_MAX);
    if (policy.kv_chunk % spec.page_size != 0) {
      refuse("plan.kv_chunk", policy.kv_chunk,
             "a multiple of the page size, " + std::to_string(spec.page_size));
    }
    if (!capacity.allow_split) refuse("capacity.allow_split", 0, "true for fixed_chunk plans");
    if (capacity.min_kv_chunk == 0 || policy.kv_chunk < capacity.min_kv_chunk) {
      throw Error(ErrorCode::kOverCapacity, "plan.kv_chunk", std::to_string(policy.kv_chunk),
                  capacity.min_kv_chunk == 0
                      ? std::string("another policy: capacity.min_kv_chunk is 0")
                      : "at least capacity.min_kv_chunk, " + std::to_string(capacity.min_kv_chunk));
    }
  } else if (policy.kv_chunk != 0) {
    refuse("plan.kv_chunk", policy.kv_chunk, "none with a policy other than fixed_chunk");
  }
  if (policy.kind == PolicyKind::kBatchInvariant) {
    if (!capacity.allow_batch_invariant) {
      throw Error(ErrorCode::kOverCapacity, "plan.policy", "batch_invariant",
                  "another policy: capacity.allow_batch_invariant is off");
    }
    check_class(target.canonical, "target.canonical");
    if (target.segment_tokens < 1 || target.segment_tokens % target.canonical.kv_tile != 0) {
      refuse("target.segment_tokens", target.segment_tokens,
             "a positive multiple of the canonical kv_tile, " +
                 std::to_string(target.canonical.kv_tile));
    }
  }
}

GroupBounds group_bounds(const AttentionSpec& spec, const Capacity& capacity, const Policy& policy,
                         const PlanTarget& target) {
  validate(spec, capacity, policy, target);
  const bool canonical = policy.kind == PolicyKind::kBatchInvariant;
  const i64 heads = spec.num_kv_heads;
  const i64 views = capacity.max_views;
  const i64 workers = worker_count(target, policy);
  const i64 fused =
      CheckedSize::multiply("fused query rows", capacity.max_query_rows, spec.group_size());
  const i64 q_low = canonical ? target.canonical.q_tile : target.classes[0].q_tile;
  const i64 q_high =
      canonical ? q_low : target.classes[static_cast<std::size_t>(target.num_classes) - 1].q_tile;
  const i64 q_cut = policy.tile_per_item ? q_high : q_low;
  const auto mul = [](i64 a, i64 b) { return CheckedSize::multiply("plan bound", a, b); };
  const auto add = [](i64 a, i64 b) { return CheckedSize::add("plan bound", a, b); };

  GroupBounds b;
  b.requests = capacity.max_requests;
  b.query_rows = capacity.max_query_rows;
  b.blocks = max_blocks(capacity);
  b.workers = workers;
  // A row block has one tile, plus one more each time that q_cut fused rows are full; where rows of
  // several requests see windows far apart, a tile also ends with its request.
  i64 cuts = mul(views, fused / q_cut);
  if (spec.window_left >= 0 && spec.mask == MaskKind::kCausal) {
    cuts = add(cuts, mul(views, capacity.max_requests));
  }
  // Level cutting may list every block once per team of heads.
  const bool levels =
      policy.kind == PolicyKind::kThroughput && capacity.allow_split && policy.balance;
  const i64 lists =
      levels ? heads / team_heads(spec.num_kv_heads, static_cast<std::int32_t>(workers)) : 1;
  b.tiles = add(mul(lists, b.blocks), mul(heads, cuts));
  const i64 unsplit_items = mul(heads, add(b.blocks, cuts));

  const i64 all_rows = mul(mul(capacity.max_query_rows, spec.num_qo_heads), views);
  if (views > 1 || !policy.allow_write_through) b.base_rows = all_rows;
  const bool splits = capacity.allow_split;
  if (policy.kind == PolicyKind::kFixedChunk) {
    const i64 chunks = add(capacity.max_kv_tokens, policy.kv_chunk - 1) / policy.kv_chunk;
    if (chunks > 1 || views > 1) {
      b.base_rows = mul(mul(capacity.max_query_rows, spec.num_qo_heads), chunks + views - 1);
    }
    b.runs = mul(b.tiles, std::max<i64>(chunks, 1));
    b.items = mul(unsplit_items, std::max<i64>(chunks, 1));
  } else if (policy.kind == PolicyKind::kUnsplit || !splits) {
    b.runs = b.tiles;
    b.items = unsplit_items;
  } else {
    b.split_items = mul(kSplitItemsPerWorker, workers);
    const i64 tiles_per_worker = canonical ? kCanonicalTilesPerWorker : kSplitTilesPerWorker;
    b.split_rows = mul(mul(tiles_per_worker, workers), std::min(q_high, fused));
    i64 forced = 0;
    if (canonical && views > 1) {
      forced = mul(kForcedSegments, unsplit_items);
      b.base_rows = mul(b.base_rows, kForcedSegments);
      b.split_items = add(b.split_items, forced);
    }
    b.runs = add(b.tiles, b.split_items);
    b.items = add(unsplit_items, b.split_items);
  }
  b.pieces = canonical ? mul(b.runs, views) : b.runs;
  b.state_rows = add(b.base_rows, b.split_rows);
  // Every merge, and every reference of a merge, owns at least one state row per head.
  b.refs = b.state_rows;
  if (views == 1) {
    const bool all_merge = !policy.allow_write_through || policy.kind == PolicyKind::kFixedChunk;
    b.refs = std::min(b.refs, all_merge ? b.runs : b.split_items);
  }
  b.merges = b.refs;
  b.counters = views == 1 ? std::min(b.state_rows, mul(b.refs, heads)) : b.state_rows;

  const auto words = [](std::size_t bytes) { return static_cast<i64>(bytes / 4); };
  const i64 sections = 8 + 3 * device::kMaxClasses;  // each may be padded to 16 words
  i64 total = words(sizeof(device::GroupHeader)) + 16 * sections;
  total = add(total, mul(b.blocks, words(sizeof(device::RowBlock))));
  total = add(total, mul(b.pieces, words(sizeof(device::Piece))));
  total = add(total, mul(b.runs, words(sizeof(device::Run))));
  total = add(total, mul(device::kMaxClasses, workers + 1));
  total = add(total, mul(device::kMaxClasses, mul(workers, words(sizeof(device::WorkerStart)))));
  total = add(total, mul(b.items, words(sizeof(device::Slice))));
  total = add(total, mul(b.merges, words(sizeof(device::Merge))));
  total = add(total, mul(b.refs, words(sizeof(device::StateRef))));
  total = add(total, add(b.query_rows, add(mul(2, b.requests), 1)));
  b.words = total;
  return b;
}

}  // namespace plait::planning

namespace plait {

PlanBounds plan_bounds(std::span<const AttentionSpec> groups, const Capacity& capacity,
                       const Policy& policy, std::span<const PlanTarget> targets) {
  using planning::GroupBounds;
  if (groups.empty() || groups.size() > static_cast<std::size_t>(device::kMaxGroups)) {
    throw Error(ErrorCode::kInvalidArgument, "groups (length)", std::to_string(groups.size()),
                "1.." + std::to_string(device::kMaxGroups));
  }
  if (targets.size() != groups.size()) {
    throw Error(ErrorCode::kInvalidArgument, "targets (length)", std::to_string(targets.size()),
                "one per group, " + std::to_string(groups.size()));
  }
  PlanBounds bounds;
  bounds.plan_words = device::group_header_offset(0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const GroupBounds b = planning::group_bounds(groups[g], capacity, policy, targets[g]);
    bounds.plan_words = CheckedSize::add("plan_words", bounds.plan_words, b.words);
    // Runs of one object do not overlap each other, so groups share these.
    bounds.state_rows = std::max(bounds.state_rows, b.state_rows);
    bounds.counters = std::max(bounds.counters, b.counters);
    bounds.merges = std::max(bounds.merges, b.merges);
    bounds.workers[g] = b.workers;
  }
  const auto fits = [](const char* name, std::int64_t value) {
    if (value <= INT32_MAX) return;
    throw Error(ErrorCode::kUnsupported, std::string("capacity: ") + name, std::to_string(value),
                "at most 2^31-1, what a plan's 32-bit offsets reach; lower the capacity or raise "
                "the smallest chunk");
  };
  fits("plan words", bounds.plan_words);
  fits("partial state rows", bounds.state_rows);
  fits("merge counters", bounds.counters);
  return bounds;
}

}  // namespace plait
