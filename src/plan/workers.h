// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Who does what: shares of the workers for each tile class, and assignment.
#pragma once

#include "plan/assign.h"

namespace plait::planning {

struct WorkerPlan {
  i32 num_assigned = 0;
  // Assignments of a class are [class_begin, class_end), mixed with those of others if `mixed`.
  std::array<i32, device::kMaxClasses> class_begin{};
  std::array<i32, device::kMaxClasses> class_end{};
  bool mixed = false;
  std::array<bool, device::kMaxClasses> by_worker{};  // in order of workers
  // Level cutting assigns nothing: worker run_team[r] * team + i takes the items of run r from
  // heads_each * i on.
  i32 team = 0;
  i32 heads_each = 1;
  i32 num_runs = 0;
  i64 total_load = 0;
  i64 largest_load = 0;
  i64 largest_item = 0;
  std::array<ClassSummary, device::kMaxClasses> classes{};
};

/// Workers (or teams of them) of each class by its part of the cost, so that the largest mean load
/// of a class is smallest; at least one for every class with cost.
void share_workers(i32 num_classes, i32 workers, const std::array<i64, device::kMaxClasses>& totals,
                   std::array<i32, device::kMaxClasses>& shares);

/// Lists `wanted` of `all` runs into scratch.class_runs: those of a class, if not all.
void list_runs(const Scratch& scratch, i32 all, i32 wanted, std::size_t tile_class);

/// Assigns all runs of a group, `run_items` items in each; the result stays in scratch until
/// write_slices.
WorkerPlan assign_group(const GroupFacts& group, const RunCosts& costs, i32 run_items,
                        const Scratch& scratch);

}  // namespace plait::planning
