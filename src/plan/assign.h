// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Items to workers: longest first, to the least loaded, ties by stable id, in rounds so that the
// cost follows the runs and the workers rather than the items.
#pragma once

#include "plan/runs.h"

namespace plait::planning {

/// A part of a run, given to a worker.
struct Assigned {
  device::Slice slice;
  i32 worker;
};

struct AssignJob {
  const i64* cost = nullptr;  // per item, of every run of the group
  const i32* runs = nullptr;  // the runs to assign, ascending
  i32 num_runs = 0;
  ClassCosts sum;     // of these runs
  i32 run_items = 1;  // items of each run
  i32 num_workers = 1;
  bool balance = true;
};

struct AssignScratch {
  i32* order = nullptr;                 // [runs]
  i32* half_sorted = nullptr;           // [runs]
  std::uint16_t* run_keys = nullptr;    // [runs]
  i64* loads = nullptr;                 // [workers]
  i32* workers = nullptr;               // [workers]
  std::uint8_t* worker_keys = nullptr;  // [workers]
};

struct AssignResult {
  i32 num_assigned = 0;
  bool by_worker = false;  // in order of workers already
  i64 num_items = 0;
  i64 total_load = 0;
  i64 largest_load = 0;
  i64 largest_item = 0;
};

/// Appends to `out` (room for every item). Guarantee with `balance`:
/// largest_load <= total_load / C + (1 - 1/C) * largest_item.
AssignResult assign(const AssignJob& job, const AssignScratch& scratch, Assigned* out);

}  // namespace plait::planning
