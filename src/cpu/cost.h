// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plait/capacity.h"
#include "plait/spec.h"
#include "plan/planner.h"

namespace plait::cpu {

/// What the planner is told about this backend: threads as workers, a class of few rows (read K
/// once, memory bound) and one of full query tiles (compute bound).
PlanTarget plan_target(const AttentionSpec& spec, const Policy& policy, int num_threads);

}  // namespace plait::cpu
