// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Into how many items a task is cut.
#pragma once

#include "plan/runs.h"

namespace plait::planning {

/// What a way of cutting needs of the budgets.
struct CutSize {
  i64 runs = 0;
  i64 state_rows = 0;
};

/// Adds what one task, as it is cut, needs.
void add_cut(CutSize& size, const BatchFacts& batch, const Task& task);

/// Marks tasks whose rows get states from several views (or all of them, if nothing may write
/// through). Must run before cutting.
void mark_shared_rows(const GroupFacts& group, const BatchFacts& batch, TaskList& list);

/// Tasks as whole items.
struct WholeSize {
  i64 total = 0;    // cost of all heads
  i64 largest = 0;  // cost of one item
  CutSize size;
  RunCosts runs;  // as if no task needed a state
};

/// Leaves cost and class of each in scratch, as cost_runs does.
WholeSize measure(const BatchFacts& batch, const TaskList& list, Scratch& scratch);

/// One item per task.
CutSize cut_unsplit(const GroupFacts& group, const BatchFacts& batch, TaskList& list);

/// Items of exactly policy.kv_chunk slots, counted from slot 0.
CutSize cut_fixed(const GroupFacts& group, const BatchFacts& batch, TaskList& list);

/// Items of about `limit` cost at most. Returns the need, which the caller compares with the
/// bounds before it uses the cut.
CutSize cut_to_limit(const GroupFacts& group, const BatchFacts& batch, TaskList& list, i64 limit);

}  // namespace plait::planning
