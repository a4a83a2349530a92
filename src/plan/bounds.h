// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// How large any plan within a Capacity can get. docs/planner.md gives the proofs; the planner
// enforces the budgets that they rest on.
#pragma once

#include <cstdint>

#include "plait/capacity.h"
#include "plait/spec.h"
#include "plan/planner.h"

namespace plait::planning {

/// Chunks (items) that throughput and batch_invariant plans may cut, per worker.
inline constexpr std::int64_t kSplitItemsPerWorker = 16;
/// Partial states for splitting, in query tiles of the largest class per worker. A limit of one
/// mean load per item needs at most two (see docs/planner.md), so it is always within budget.
inline constexpr std::int64_t kSplitTilesPerWorker = 2;
/// The same for canonical segments, whose query tile is smaller and whose chunks cannot be chosen.
inline constexpr std::int64_t kCanonicalTilesPerWorker = 4;
/// Partial states per query row and head that canonical segments may force in a cascade, per view.
inline constexpr std::int64_t kForcedSegments = 4;

struct GroupBounds {
  std::int64_t requests = 0;
  std::int64_t query_rows = 0;
  std::int64_t blocks = 0;  // RowBlock records
  std::int64_t tiles = 0;   // tasks: (row block, head domain, query tile)
  std::int64_t runs = 0;
  std::int64_t pieces = 0;
  std::int64_t items = 0;        // runs times their heads; slices never exceed it
  std::int64_t split_items = 0;  // budget for chunks of split tiles
  std::int64_t split_rows = 0;   // budget for their partial states
  std::int64_t base_rows = 0;    // partial states that unsplit plans need
  std::int64_t state_rows = 0;
  std::int64_t merges = 0;
  std::int64_t refs = 0;
  std::int64_t counters = 0;
  std::int64_t workers = 0;
  std::int64_t words = 0;  // of the group in the blob
};

/// Workers of a target under a policy.
std::int32_t worker_count(const PlanTarget& target, const Policy& policy);

std::int64_t max_blocks(const Capacity& capacity);

/// Heads that fill workers as one team in level cutting: all of them if they divide the workers, so
/// that none idles, else the greatest common divisor.
std::int32_t team_heads(std::int32_t heads, std::int32_t workers);

/// Refuses a capacity or policy that is wrong in itself.
void validate(const AttentionSpec& spec, const Capacity& capacity, const Policy& policy,
              const PlanTarget& target);

GroupBounds group_bounds(const AttentionSpec& spec, const Capacity& capacity, const Policy& policy,
                         const PlanTarget& target);

}  // namespace plait::planning
