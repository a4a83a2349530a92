// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/plan_bench.h"

#include <algorithm>
#include <chrono>

#include "plan/fit_capacity.h"
#include "plan/reference_target.h"

namespace plait {

PlanTiming time_plan(CorpusCase& c, const Policy& policy, int repeats) {
  const PlanTarget target = reference_target(c.spec);
  const std::span<const AttentionSpec> spec(&c.spec, 1);
  const Batch batch = c.batch.get();
  // The other batch: the first request alone.
  OwnedBatch other_owned;
  other_owned.qo_indptr = {0, 1};
  OwnedView view;
  view.row_indptr = {0, 1};
  view.add_list(64, c.spec.kv_kind == KvKind::kRagged ? 0 : c.spec.page_size);
  other_owned.views.push_back(view);
  const Batch other = other_owned.get();
  Planner planner(spec, fit_capacity(spec, std::span(&batch, 1), policy), policy,
                  std::span(&target, 1));
  std::vector<std::int64_t> times;
  for (int i = -repeats / 10 - 3; i < repeats; ++i) {
    if (i % 7 == 0) planner.plan(std::span(&other, 1));
    const auto begin = std::chrono::steady_clock::now();
    planner.plan(std::span(&batch, 1));
    const auto end = std::chrono::steady_clock::now();
    if (i >= 0) {
      times.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count());
    }
  }
  std::sort(times.begin(), times.end());
  PlanTiming timing;
  timing.median = times[times.size() / 2];
  timing.p10 = times[times.size() / 10];
  timing.p90 = times[times.size() * 9 / 10];
  timing.summary = planner.current().groups[0].totals;
  return timing;
}

}  // namespace plait
