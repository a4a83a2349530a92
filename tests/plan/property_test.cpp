// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "plait/error.h"
#include "random_batch.h"

namespace plait::test {
namespace {

/// List scheduling: makespan <= mean + (1 - 1/C) * largest item, for each set of workers.
void check_makespan(const GroupSummary& s, bool shared) {
  const auto holds = [](std::int64_t makespan, std::int64_t total, std::int64_t largest,
                        std::int64_t workers) {
    return makespan * workers <= total + (workers - 1) * largest;
  };
  std::int64_t total = 0;
  for (int c = 0; c < s.num_classes; ++c) {
    const ClassSummary& k = s.classes[static_cast<std::size_t>(c)];
    total += k.total_load;
    if (k.num_items == 0 || shared) continue;
    RC_ASSERT(holds(k.largest_load, k.total_load, k.largest_item, k.num_workers));
  }
  if (shared) {
    RC_ASSERT(holds(s.totals.largest_load, total, s.totals.largest_item, s.totals.num_workers));
  }
}

void plan_and_verify(bool positions_with_levels) {
  AttentionSpec spec = draw_spec();
  const PlanTarget target = draw_target();
  const Policy policy = draw_policy(spec);
  if (policy.kind == PolicyKind::kBatchInvariant) positions_with_levels = false;
  OwnedBatch owned = draw_batch(spec, positions_with_levels);
  RC_LOG() << describe(spec, policy, target, owned);
  const Capacity capacity = capacity_of(spec, owned, policy);
  Planner planner(std::span(&spec, 1), capacity, policy, std::span(&target, 1));
  const Batch& batch = owned.get();
  const Plan& plan = planner.plan(std::span(&batch, 1));
  verify_plan(std::span(&spec, 1), std::span(&batch, 1), plan, planner.bounds());
  const bool shared =
      target.num_classes > 1 && target.shared_workers && policy.kind != PolicyKind::kBatchInvariant;
  if (policy.balance) check_makespan(plan.groups[0], shared);
}

TEST(PlanProperty, EveryVisiblePairOnceSmallBatches) {
  EXPECT_TRUE(rc::check("one plan, verified", [] { plan_and_verify(true); }));
}

}  // namespace
}  // namespace plait::test
