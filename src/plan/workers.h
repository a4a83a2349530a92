// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Worker lists: shares of the workers for each tile class, assignment, slices in the blob.
#pragma once

#include "plan/assign.h"
#include "plan/blob.h"

namespace plait::planning {

struct WorkerPlan {
  i32 num_assigned = 0;
  i64 total_load = 0;
  i64 largest_load = 0;
  i64 largest_item = 0;
  std::array<ClassSummary, device::kMaxClasses> classes{};
};

/// Assigns all runs of a group; the result stays in scratch until write_slices.
WorkerPlan assign_group(const GroupFacts& group, i32 num_runs, const Scratch& scratch);

/// Sorts the assignment by class and worker into the blob and fills the class headers.
void write_slices(const GroupFacts& group, const WorkerPlan& plan, const Scratch& scratch,
                  BlobWriter& blob, device::GroupHeader& header);

}  // namespace plait::planning
