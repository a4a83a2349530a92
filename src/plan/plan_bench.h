// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "plait/attention.h"
#include "plan/corpus.h"

namespace plait {

/// Times of Planner::plan, nanoseconds.
struct PlanTiming {
  std::int64_t median = 0;
  std::int64_t p10 = 0;
  std::int64_t p90 = 0;
  PlanSummary summary;
};

/// Plans the case `repeats` times after a warm-up, alternating with a batch of other lengths so
/// that no run finds its own results in place.
PlanTiming time_plan(CorpusCase& c, const Policy& policy, int repeats);

}  // namespace plait
