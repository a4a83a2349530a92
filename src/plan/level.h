// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Level cutting: when whole items cannot be balanced, the tasks are laid end to end and cut where
// a worker is full. The items of a run's heads stay equal, so workers fill in teams of one worker
// per head, and a cut costs one run, not one per head.
#pragma once

#include "plan/blob.h"
#include "plan/workers.h"

namespace plait::planning {

/// Cuts all tasks and fills `plan` (loads as write_runs will compute them) and scratch.run_team.
/// False if teams cannot be formed: fewer workers than heads in a domain.
bool cut_level(const GroupFacts& group, const BatchFacts& batch, TaskList& list, Scratch& scratch,
               WorkerPlan& plan);

/// Turns the teams into an assignment, after the runs are written.
void assign_teams(const BatchFacts& batch, i32 num_runs, const Scratch& scratch, WorkerPlan& plan);

}  // namespace plait::planning
