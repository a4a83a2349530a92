// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a memory-bound class costs while others compute.
#pragma once

#include "plan/chunking.h"

namespace plait::planning {

/// Costs of a class are those that it has when all workers run it and share the bandwidth. Where
/// several classes have work and run side by side, the few workers of one that reads memory
/// each get more: its costs (in `group` and of its tasks) are reduced to what its share of the
/// workers leaves it. `whole`: of these tasks; returns whether it is to be measured again.
bool lighten_costs(GroupFacts& group, const WholeSize& whole, TaskList& list);

}  // namespace plait::planning
