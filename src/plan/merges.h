// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The reduction map: for each range of output rows the partial states to join, in order.
#pragma once

#include "plan/runs.h"

namespace plait::planning {

/// Merges and their references; completes the merge fields of the runs.
struct MergeSection {
  i32 merge_offset = 0, num_merges = 0;
  i32 ref_offset = 0, num_refs = 0;
  i32 num_counters = 0;
  i64 largest_arrival = 0;  // see GroupSummary
  i64 total_arrivals = 0;   // the same of all merges and heads
};
MergeSection write_merges(const BatchFacts& batch, TaskList& list, const RunSection& runs,
                          BlobWriter& blob);

}  // namespace plait::planning
