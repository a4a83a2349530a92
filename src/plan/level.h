// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Level cutting: when whole items cannot be balanced, the tasks are laid end to end and cut where
// a worker is full. The items of a run's heads stay equal, so workers fill in teams of one worker
// per head, and a cut costs one run, not one per head.
#pragma once

#include "plan/blob.h"
#include "plan/chunking.h"
#include "plan/workers.h"

namespace plait::planning {

/// Where workers are full.
struct LevelPlan {
  i32 team = 1;                                   // workers that share the heads of a run
  i32 heads_each = 1;                             // of a run, for each worker of a team
  i32 copies = 1;                                 // of the list, which share a domain's heads
  bool together = true;                           // one set of workers for all classes, in place 0
  std::array<i32, device::kMaxClasses> shares{};  // teams of each set
  std::array<i64, device::kMaxClasses> level{};   // of a team of each set
  CutSize size;                                   // of the tasks when cut
  WorkerPlan workers;                             // loads as write_runs will compute them
};

/// Searches the levels at which the tasks of `list`, as if uncut, fill the workers. Changes no
/// task. `whole`: of these tasks. False if teams cannot be formed: fewer workers than heads in a
/// domain.
bool find_level(const GroupFacts& group, const BatchFacts& batch, const TaskList& list,
                const WholeSize& whole, const Scratch& scratch, LevelPlan& plan);

/// Cuts all tasks of a list that was split into the plan's copies, and fills scratch.run_team.
void cut_at_level(const GroupFacts& group, const LevelPlan& plan, TaskList& list, Scratch& scratch);

}  // namespace plait::planning
