// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Runs: the equal items of a task's heads, and the pieces that they read.
#pragma once

#include "plan/blob.h"

namespace plait::planning {

/// What the runs of one class cost, per item.
struct ClassCosts {
  i32 runs = 0;
  i64 total = 0;
  i64 largest = 0;
  i64 smallest = INT64_MAX;

  void add(i64 cost) {
    total += cost;
    largest = std::max(largest, cost);
    smallest = std::min(smallest, cost);
  }
};

struct RunCosts {
  i32 count = 0;
  std::array<ClassCosts, device::kMaxClasses> classes{};
};

/// Cost and class of every run of the tasks as they are cut, into scratch.
RunCosts cost_runs(const GroupFacts& group, const TaskList& list, Scratch& scratch);

/// Runs and pieces of the same cut.
struct RunSection {
  i32 run_offset = 0, num_runs = 0;
  i32 piece_offset = 0, num_pieces = 0;
  i64 num_items = 0;
  i64 state_rows = 0;
  i64 partial_states = 0;
};
RunSection write_runs(const GroupFacts& group, const BatchFacts& batch, TaskList& list,
                      i32 num_runs, BlobWriter& blob, Scratch& scratch);

}  // namespace plait::planning
