// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "plait/error.h"
#include "plan/workers.h"
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

/// Two layer groups, the second windowed, planned together; then another batch, then the first
/// again: the same bytes.
void plan_groups_twice() {
  AttentionSpec spec = draw_spec();
  AttentionSpec windowed = spec;
  windowed.window_left = pick({0, 3, 20, 64});
  const std::vector<AttentionSpec> specs = {spec, windowed};
  const PlanTarget target = draw_target();
  const std::vector<PlanTarget> targets = {target, draw_target()};
  const Policy policy = draw_policy(spec);
  OwnedBatch first = draw_batch(spec, policy.kind != PolicyKind::kBatchInvariant);
  OwnedBatch second = draw_batch(spec, policy.kind != PolicyKind::kBatchInvariant);
  RC_LOG() << describe(spec, policy, target, first) << describe(spec, policy, target, second);
  Capacity capacity = capacity_of(spec, first, policy);
  const Capacity other = capacity_of(spec, second, policy);
  capacity.max_requests = std::max(capacity.max_requests, other.max_requests);
  capacity.max_query_rows = std::max(capacity.max_query_rows, other.max_query_rows);
  capacity.max_row_blocks = std::max(capacity.max_row_blocks, other.max_row_blocks);
  capacity.max_views = std::max(capacity.max_views, other.max_views);
  Planner planner(specs, capacity, policy, targets);
  const auto words_of = [&](OwnedBatch& owned) {
    const Batch& batch = owned.get();
    const Plan& plan = planner.plan(std::span(&batch, 1));
    verify_plan(specs, std::span(&batch, 1), plan, planner.bounds());
    return std::vector<std::int32_t>(plan.words.begin(), plan.words.end());
  };
  const auto words = words_of(first);
  words_of(second);
  RC_ASSERT(words_of(first) == words);
}

TEST(PlanProperty, GroupsAndRepeatsGiveTheSameBytes) {
  EXPECT_TRUE(rc::check("two groups, planned again", [] { plan_groups_twice(); }));
}

/// fixed_chunk: no item crosses a multiple of the chunk.
void chunks_stay_on_the_grid() {
  AttentionSpec spec = draw_spec();
  const PlanTarget target = draw_target();
  Policy policy;
  policy.kind = PolicyKind::kFixedChunk;
  policy.kv_chunk = spec.page_size * draw(1, 12);
  OwnedBatch owned = draw_batch(spec, true);
  RC_LOG() << describe(spec, policy, target, owned);
  Planner planner(std::span(&spec, 1), capacity_of(spec, owned, policy), policy,
                  std::span(&target, 1));
  const Batch& batch = owned.get();
  const Plan& plan = planner.plan(std::span(&batch, 1));
  const auto* group = reinterpret_cast<const device::GroupHeader*>(plan.words.data() +
                                                                   device::group_header_offset(0));
  const auto* pieces =
      reinterpret_cast<const device::Piece*>(plan.words.data() + group->piece_offset);
  for (int p = 0; p < group->num_pieces; ++p) {
    RC_ASSERT(pieces[p].kv_begin < pieces[p].kv_end);
    RC_ASSERT(pieces[p].kv_begin / policy.kv_chunk == (pieces[p].kv_end - 1) / policy.kv_chunk);
  }
}

TEST(PlanProperty, FixedChunksStayOnTheGrid) {
  EXPECT_TRUE(rc::check("fixed chunks", [] { chunks_stay_on_the_grid(); }));
}

/// The mean load of the class whose workers have most to do, rounded down.
std::int64_t most_loaded(const std::array<std::int64_t, device::kMaxClasses>& totals,
                         const std::array<std::int32_t, device::kMaxClasses>& shares) {
  std::int64_t most = 0;
  for (std::size_t c = 0; c < totals.size(); ++c) {
    if (totals[c] > 0) most = std::max(most, totals[c] / shares[c]);
  }
  return most;
}

TEST(PlanProperty, SharesOfWorkersAreTheBestOfAll) {
  // Rounding down would leave the second class one worker: the others keep theirs.
  std::array<std::int64_t, device::kMaxClasses> totals{100, 1900, 14000};
  std::array<std::int32_t, device::kMaxClasses> shares{};
  planning::share_workers(3, 16, totals, shares);
  EXPECT_EQ(shares[0], 1);
  EXPECT_EQ(shares[1], 2);
  EXPECT_EQ(shares[2], 13);
  EXPECT_TRUE(rc::check("all splits of few workers", [] {
    const int workers = draw(3, 40);
    std::array<std::int64_t, device::kMaxClasses> costs{};
    for (std::size_t c = 0; c < 3; ++c) costs[c] = coin() ? draw(0, 200) : draw(0, 100000);
    std::array<std::int32_t, device::kMaxClasses> got{};
    planning::share_workers(3, workers, costs, got);
    std::int64_t best = INT64_MAX;
    for (int a = 0; a <= workers; ++a) {
      for (int b = 0; a + b <= workers; ++b) {
        const std::array<std::int32_t, device::kMaxClasses> split{a, b, workers - a - b};
        bool each = true;
        for (std::size_t c = 0; c < 3; ++c) each &= costs[c] == 0 || split[c] > 0;
        if (each) best = std::min(best, most_loaded(costs, split));
      }
    }
    int sum = 0;
    for (std::size_t c = 0; c < 3; ++c) {
      RC_ASSERT(costs[c] == 0 || got[c] > 0);
      sum += got[c];
    }
    RC_ASSERT(sum <= workers);
    RC_ASSERT(most_loaded(costs, got) == best);
  }));
}

TEST(PlanProperty, EveryVisiblePairOnceSmallBatches) {
  EXPECT_TRUE(rc::check("one plan, verified", [] { plan_and_verify(true); }));
}

}  // namespace
}  // namespace plait::test
