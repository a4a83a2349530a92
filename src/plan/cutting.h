// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// From a batch to runs with a worker each: how a policy cuts tasks, and when it is content.
#pragma once

#include "plan/chunking.h"
#include "plan/workers.h"

namespace plait::planning {

/// The tasks of a batch, marked where rows get states from several views.
void make_tasks(const GroupFacts& group, const BatchFacts& batch, TaskList& list);

/// Cuts the tasks, which `whole` measured, writes them as runs and assigns these. May split the
/// head domains of `batch` further.
RunSection cut_and_assign(const GroupFacts& group, const WholeSize& whole, BatchFacts& batch,
                          TaskList& list, BlobWriter& blob, Scratch& scratch, WorkerPlan& workers);

}  // namespace plait::planning
