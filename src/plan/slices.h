// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The work lists in the blob: for each tile class, the slices of each worker.
#pragma once

#include "plan/blob.h"
#include "plan/workers.h"

namespace plait::planning {

/// Sorts the assignment by class and worker into the blob and fills the class headers.
void write_slices(const GroupFacts& group, const WorkerPlan& plan, const Scratch& scratch,
                  BlobWriter& blob, device::GroupHeader& header);

}  // namespace plait::planning
