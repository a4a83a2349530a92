// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What plan() promises beyond a right plan: refusals, the previous plan, layer groups, invariance,
// bounds that worst cases come close to.
#include "plan/planner.h"

#include <gtest/gtest.h>

#include "plait/error.h"
#include "plan/bounds.h"
#include "plan/corpus.h"
#include "plan/fit_capacity.h"
#include "support/paged_batch.h"

namespace plait::test {
namespace {

AttentionSpec small_spec() {
  AttentionSpec s;
  s.num_qo_heads = 8;
  s.num_kv_heads = 2;
  s.head_dim_qk = 64;
  s.head_dim_vo = 64;
  s.page_size = 4;
  return s;
}

PlanTarget small_target(int workers) {
  PlanTarget t;
  t.num_workers = workers;
  t.num_classes = 1;
  t.classes[0] = {16, 16, {100, 5, 3, 1}};
  t.canonical = t.classes[0];
  t.segment_tokens = 64;
  return t;
}

Capacity roomy() {
  Capacity c;
  c.max_requests = 64;
  c.max_query_rows = 1024;
  c.max_kv_tokens = 1 << 16;
  return c;
}

std::string refusal(Planner& planner, const Batch& batch) {
  try {
    planner.plan(std::span(&batch, 1));
  } catch (const Error& e) {
    return std::string(to_string(e.code())) + " " + e.field() + "=" + e.value();
  }
  return "accepted";
}

TEST(Planner, RefusesByNameAndKeepsThePreviousPlan) {
  const AttentionSpec spec = small_spec();
  const PlanTarget target = small_target(8);
  Planner planner(std::span(&spec, 1), roomy(), {}, std::span(&target, 1));
  OwnedBatch good = paged_batch({{1, 100}, {3, 50}, {0, 7}}, 4);
  const Batch& good_batch = good.get();
  const Plan& plan = planner.plan(std::span(&good_batch, 1));
  const std::vector<std::int32_t> words(plan.words.begin(), plan.words.end());
  const std::int32_t* address = plan.words.data();

  OwnedBatch bad = good;
  bad.views[0].last_page_len[1] = 5;
  EXPECT_EQ(refusal(planner, bad.get()), "invalid_argument views[0].last_page_len[1]=5");
  bad = good;
  bad.views[0].last_page_len[0] = 0;
  EXPECT_EQ(refusal(planner, bad.get()), "invalid_argument views[0].last_page_len[0]=0");
  bad = good;
  bad.qo_indptr = {0, 3, 1, 4};
  EXPECT_EQ(refusal(planner, bad.get()), "invalid_argument qo_indptr[2]=1");
  bad = good;
  bad.views[0].page_indptr[1] = 99;
  EXPECT_EQ(refusal(planner, bad.get()), "invalid_argument views[0].page_indptr[2]=38");
  bad = good;
  bad.views[0].row_indptr.back() = 5;
  EXPECT_EQ(refusal(planner, bad.get()), "invalid_argument views[0].row_indptr[3]=5");
  bad = good;
  bad.views[0].last_page_len.pop_back();
  EXPECT_EQ(refusal(planner, bad.get()), "invalid_argument views[0].last_page_len (length)=2");
  bad = good;
  bad.views.clear();
  EXPECT_EQ(refusal(planner, bad.get()), "invalid_argument views (length)=0");
  bad = good;
  bad.kv_len = {100, 50, 8};
  EXPECT_EQ(refusal(planner, bad.get()), "invalid_argument kv_len[2]=8");
  bad = good;
  bad.views[0].positions.assign(static_cast<std::size_t>(bad.views[0].page_indptr.back()), 3);
  EXPECT_EQ(refusal(planner, bad.get()), "invalid_argument views[0].positions[1]=3");
  bad = paged_batch({{1, 1 << 17}}, 4);
  EXPECT_EQ(refusal(planner, bad.get()), "over_capacity kv_len=131072");
  bad = paged_batch(std::vector<std::pair<int, int>>(65, {1, 4}), 4);
  EXPECT_EQ(refusal(planner, bad.get()), "over_capacity requests=65");
  bad = paged_batch({{1025, 2000}}, 4);
  EXPECT_EQ(refusal(planner, bad.get()), "over_capacity query rows=1025");

  EXPECT_EQ(planner.current().words.data(), address);
  EXPECT_EQ(
      std::vector<std::int32_t>(planner.current().words.begin(), planner.current().words.end()),
      words);
}

TEST(Planner, SameBatchSameBytesWhateverCameBefore) {
  const AttentionSpec spec = small_spec();
  const PlanTarget target = small_target(8);
  Planner planner(std::span(&spec, 1), roomy(), {}, std::span(&target, 1));
  OwnedBatch a = paged_batch({{1, 100}, {3, 50}}, 4);
  OwnedBatch b = paged_batch({{30, 3000}, {1, 1}, {1, 5000}}, 4);
  const Batch& batch_a = a.get();
  const Batch& batch_b = b.get();
  const Plan& plan = planner.plan(std::span(&batch_a, 1));
  const std::vector<std::int32_t> first(plan.words.begin(), plan.words.end());
  planner.plan(std::span(&batch_b, 1));
  planner.plan(std::span(&batch_b, 1));
  planner.plan(std::span(&batch_a, 1));
  EXPECT_EQ(
      std::vector<std::int32_t>(planner.current().words.begin(), planner.current().words.end()),
      first);
}

TEST(Planner, LayerGroupsWithDifferentWindows) {
  AttentionSpec full = small_spec();
  AttentionSpec window = small_spec();
  window.window_left = 31;
  const std::vector<AttentionSpec> specs = {full, window};
  const std::vector<PlanTarget> targets = {small_target(8), small_target(8)};
  Planner planner(specs, roomy(), {}, targets);
  OwnedBatch batch = paged_batch({{1, 1000}, {200, 400}}, 4);
  const Batch& b = batch.get();
  const Plan& plan = planner.plan(std::span(&b, 1));
  verify_plan(specs, std::span(&b, 1), plan, planner.bounds());
  EXPECT_LT(plan.groups[1].totals.mean_load, plan.groups[0].totals.mean_load);
}

/// Decodes and a prefill on two classes that run side by side.
GroupSummary mixed_plan(std::int32_t headroom, int decodes) {
  const AttentionSpec spec = small_spec();
  PlanTarget target = small_target(64);
  target.num_classes = 2;
  target.classes[0].cost = {0, 0, 100, 1, headroom};
  target.classes[1] = {64, 16, {0, 0, 100, 1}};
  std::vector<std::pair<int, int>> requests(static_cast<std::size_t>(decodes), {1, 1024});
  requests.emplace_back(512, 1024);
  OwnedBatch batch = paged_batch(requests, 4);
  const Batch& b = batch.get();
  Planner planner(std::span(&spec, 1), roomy(), {}, std::span(&target, 1));
  const Plan& plan = planner.plan(std::span(&b, 1));
  verify_plan(std::span(&spec, 1), std::span(&b, 1), plan, planner.bounds());
  return plan.groups[0];
}

TEST(Planner, FewWorkersThatReadGetMoreOfTheBandwidth) {
  const GroupSummary shared = mixed_plan(kNoHeadroom, 32);
  const GroupSummary alone = mixed_plan(2 * kNoHeadroom, 32);
  ASSERT_EQ(shared.num_classes, 2);
  // Reading is half as dear, so it needs fewer workers, and all are done sooner.
  EXPECT_NEAR(static_cast<double>(alone.classes[0].total_load),
              0.5 * static_cast<double>(shared.classes[0].total_load),
              0.01 * static_cast<double>(shared.classes[0].total_load));
  EXPECT_LT(alone.classes[0].num_workers, shared.classes[0].num_workers);
  EXPECT_GT(alone.classes[1].num_workers, shared.classes[1].num_workers);
  EXPECT_LT(alone.totals.largest_load, shared.totals.largest_load);
  // Nobody to take bandwidth from, or too many readers for that.
  EXPECT_EQ(mixed_plan(2 * kNoHeadroom, 0).totals.largest_load,
            mixed_plan(kNoHeadroom, 0).totals.largest_load);
  const GroupSummary crowd = mixed_plan(2 * kNoHeadroom, 63);
  const double share = static_cast<double>(crowd.classes[0].num_workers) / 64;
  EXPECT_NEAR(static_cast<double>(crowd.classes[0].total_load) /
                  static_cast<double>(mixed_plan(kNoHeadroom, 63).classes[0].total_load),
              std::max(share, 0.5), 0.05);
}

TEST(Planner, RefusesHeadroomBelowOne) { EXPECT_THROW(mixed_plan(kNoHeadroom - 1, 4), Error); }

/// Pieces of one request's row in a canonical plan, as coordinate ranges of its items.
std::vector<std::pair<int, int>> segments_of(const Plan& plan, int row_begin, int group_size) {
  const auto* g = reinterpret_cast<const device::GroupHeader*>(plan.words.data() +
                                                               device::group_header_offset(0));
  const auto* runs = reinterpret_cast<const device::Run*>(plan.words.data() + g->run_offset);
  const auto* pieces = reinterpret_cast<const device::Piece*>(plan.words.data() + g->piece_offset);
  const auto* blocks =
      reinterpret_cast<const device::RowBlock*>(plan.words.data() + g->block_offset);
  std::vector<std::pair<int, int>> ends;
  for (int r = 0; r < g->num_runs; ++r) {
    const device::Run& run = runs[r];
    const int fused = row_begin * group_size;
    if (fused < run.fused_row_begin || fused >= run.fused_row_begin + run.num_fused_rows ||
        run.head_begin != 0) {
      continue;
    }
    for (int p = run.piece_begin; p < run.piece_begin + run.num_pieces; ++p) {
      const int base = blocks[pieces[p].block].segment_base;
      ends.emplace_back(base + pieces[p].kv_begin, base + pieces[p].kv_end);
    }
  }
  return ends;
}

TEST(Planner, WorkersOfAllClassesGetEqualItemsOfTheirOwnClass) {
  const AttentionSpec spec = small_spec();
  PlanTarget target = small_target(4);
  target.num_classes = 2;
  target.classes[0] = {4, 16, {100, 0, 0, 0}};
  target.classes[1] = {16, 16, {100, 0, 0, 0}};
  target.shared_workers = true;
  Planner planner(std::span(&spec, 1), roomy(), {}, std::span(&target, 1));
  OwnedBatch owned = paged_batch({{1, 100}, {4, 50}, {1, 7}}, 4);
  const Batch& batch = owned.get();
  const Plan& plan = planner.plan(std::span(&batch, 1));
  verify_plan(std::span(&spec, 1), std::span(&batch, 1), plan, planner.bounds());
  EXPECT_EQ(plan.groups[0].classes[0].num_items, 4);
  EXPECT_EQ(plan.groups[0].classes[1].num_items, 2);
}

TEST(Planner, SingleContributionsWriteThrough) {
  const AttentionSpec spec = small_spec();
  const PlanTarget target = small_target(8);
  OwnedBatch batch = paged_batch({{1, 100}, {30, 50}, {2, 0}, {1, 4000}}, 4);
  const auto planned = [&](PolicyKind kind, bool write_through) {
    Policy policy;
    policy.kind = kind;
    policy.allow_write_through = write_through;
    Planner planner(std::span(&spec, 1), roomy(), policy, std::span(&target, 1));
    const Batch& b = batch.get();
    const Plan& plan = planner.plan(std::span(&b, 1));
    verify_plan(std::span(&spec, 1), std::span(&b, 1), plan, planner.bounds());
    const auto* group = reinterpret_cast<const device::GroupHeader*>(
        plan.words.data() + device::group_header_offset(0));
    const auto* merges =
        reinterpret_cast<const device::Merge*>(plan.words.data() + group->merge_offset);
    std::vector<std::int32_t> contributions;  // of each merge
    for (std::int32_t m = 0; m < group->num_merges; ++m) {
      contributions.push_back(merges[m].num_refs);
    }
    return contributions;
  };
  EXPECT_TRUE(planned(PolicyKind::kUnsplit, true).empty());
  // The long request is cut; only what is has states to merge.
  const std::vector<std::int32_t> cut = planned(PolicyKind::kThroughput, true);
  EXPECT_FALSE(cut.empty());
  for (const std::int32_t states : cut) EXPECT_GE(states, 2);
  // The ablation: every row has a state, of one contribution too.
  const std::vector<std::int32_t> ablated = planned(PolicyKind::kUnsplit, false);
  EXPECT_FALSE(ablated.empty());
  for (const std::int32_t states : ablated) EXPECT_EQ(states, 1);
}

TEST(Planner, CanonicalSegmentsEndAtMultiplesWhateverSurrounds) {
  const AttentionSpec spec = small_spec();
  Policy policy;
  policy.kind = PolicyKind::kBatchInvariant;
  for (int neighbours : {0, 1, 40}) {
    for (int workers : {1, 8, 33}) {
      const PlanTarget target = small_target(workers);
      Planner planner(std::span(&spec, 1), roomy(), policy, std::span(&target, 1));
      std::vector<std::pair<int, int>> requests(static_cast<std::size_t>(neighbours), {1, 777});
      requests.emplace_back(1, 1000);
      OwnedBatch batch = paged_batch(requests, 4);
      const Batch& b = batch.get();
      const Plan& plan = planner.plan(std::span(&b, 1));
      const auto ranges = segments_of(plan, neighbours, 4);
      ASSERT_FALSE(ranges.empty());
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        EXPECT_EQ(ranges[i].first % 64, 0);
        if (i + 1 < ranges.size()) {
          EXPECT_EQ(ranges[i].second % 64, 0);
          EXPECT_EQ(ranges[i].second, ranges[i + 1].first);
        }
        // After the first item, which folds, every item is one segment.
        if (i > 0) {
          EXPECT_LE(ranges[i].second - ranges[i].first, 64);
        }
      }
      EXPECT_EQ(ranges.back().second, 1000);
    }
  }
}

/// Bytes that a plan uses of those that its bounds reserve.
double use_of(const AttentionSpec& spec, const Capacity& capacity, const Policy& policy,
              const PlanTarget& target, OwnedBatch& batch) {
  Planner planner(std::span(&spec, 1), capacity, policy, std::span(&target, 1));
  const Batch& b = batch.get();
  const Plan& plan = planner.plan(std::span(&b, 1));
  verify_plan(std::span(&spec, 1), std::span(&b, 1), plan, planner.bounds());
  const PlanBounds& bounds = planner.bounds();
  const double row_bytes = 4.0 * (spec.head_dim_vo + 1);
  const double reserved = 4.0 * static_cast<double>(bounds.plan_words + bounds.counters) +
                          row_bytes * static_cast<double>(bounds.state_rows);
  return static_cast<double>(plan.groups[0].totals.workspace_bytes) / reserved;
}

TEST(PlanBounds, WorstCasesReachHalf) {
  AttentionSpec spec = small_spec();
  spec.head_dim_qk = spec.head_dim_vo = 128;
  spec.mask = MaskKind::kNone;
  const PlanTarget target = small_target(64);
  {
    // Throughput: as many query tiles as workers, all but one a little above the mean load, so
    // that each is cut in two.
    std::vector<std::pair<int, int>> requests(31, {4, 4096});
    requests.emplace_back(4, 16);
    OwnedBatch batch = paged_batch(requests, 4);
    Capacity c = fit_capacity(std::span(&spec, 1), std::span(&batch.get(), 1), {});
    EXPECT_GE(use_of(spec, c, {}, target, batch), 0.5);
  }
  {
    Policy fixed;
    fixed.kind = PolicyKind::kFixedChunk;
    fixed.kv_chunk = 64;
    OwnedBatch batch = paged_batch(std::vector<std::pair<int, int>>(16, {8, 2048}), 4);
    Capacity c = fit_capacity(std::span(&spec, 1), std::span(&batch.get(), 1), fixed);
    EXPECT_GE(use_of(spec, c, fixed, target, batch), 0.5);
  }
  {
    Policy unsplit;
    unsplit.kind = PolicyKind::kUnsplit;
    std::vector<std::pair<int, int>> requests(200, {1, 64});
    for (std::size_t i = 0; i < requests.size(); ++i) requests[i].second += static_cast<int>(i);
    OwnedBatch batch = paged_batch(requests, 4);
    Capacity c = fit_capacity(std::span(&spec, 1), std::span(&batch.get(), 1), unsplit);
    EXPECT_GE(use_of(spec, c, unsplit, target, batch), 0.5);
  }
  {
    // batch_invariant: one prompt whose segments are all single items.
    Policy invariant;
    invariant.kind = PolicyKind::kBatchInvariant;
    OwnedBatch batch = paged_batch({{4, 64 * 120}}, 4);
    Capacity c = fit_capacity(std::span(&spec, 1), std::span(&batch.get(), 1), invariant);
    EXPECT_GE(use_of(spec, c, invariant, target, batch), 0.5);
  }
}

TEST(PlanBounds, HugeCapacitiesAreSizedOrRefusedByName) {
  const AttentionSpec spec = small_spec();
  const PlanTarget target = small_target(264);
  Capacity c;
  c.max_requests = 1 << 20;
  c.max_query_rows = 1 << 20;
  c.max_kv_tokens = std::int64_t{1} << 31;
  const PlanBounds bounds = plan_bounds(std::span(&spec, 1), c, {}, std::span(&target, 1));
  EXPECT_GT(bounds.plan_words, std::int64_t{1 << 20} * 30);
  EXPECT_LE(bounds.plan_words, INT32_MAX);
  Policy fixed;
  fixed.kind = PolicyKind::kFixedChunk;
  fixed.kv_chunk = 64;
  c.min_kv_chunk = 64;
  try {
    plan_bounds(std::span(&spec, 1), c, fixed, std::span(&target, 1));
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(e.field().substr(0, 9), "capacity:");
  }
}

TEST(PlanBounds, PoliciesOutsideOfTheEnumerationAreRefused) {
  const AttentionSpec spec = small_spec();
  const PlanTarget target = small_target(8);
  Policy policy;
  policy.kind = PolicyKind{4};
  try {
    plan_bounds(std::span(&spec, 1), roomy(), policy, std::span(&target, 1));
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.field(), "plan.policy");
  }
}

TEST(PlanBounds, SlowTwoToThe31TokensAndTwoToThe20Requests) {
  AttentionSpec spec = small_spec();
  spec.page_size = 1 << 20;
  spec.num_qo_heads = spec.num_kv_heads = 1;
  const PlanTarget target = small_target(264);
  // 2^20 requests, the first of nearly 2^31 tokens, all others of 2^20.
  std::vector<std::pair<int, int>> requests(1 << 20, {1, 1 << 20});
  requests[0].second = INT32_MAX;
  OwnedBatch batch = paged_batch(requests, 1 << 20);
  Capacity c;
  c.max_requests = c.max_query_rows = 1 << 20;
  c.max_kv_tokens = INT32_MAX;
  Planner planner(std::span(&spec, 1), c, {}, std::span(&target, 1));
  const Batch& b = batch.get();
  const GroupSummary& s = planner.plan(std::span(&b, 1)).groups[0];
  EXPECT_GE(s.totals.num_items, 1 << 20);
  EXPECT_GT(s.totals.mean_load, std::int64_t{1} << 32);
  EXPECT_LE(s.totals.largest_load, s.totals.mean_load + s.totals.largest_item);
}

TEST(PlanBounds, MonotoneInCapacity) {
  const AttentionSpec spec = small_spec();
  const PlanTarget target = small_target(16);
  std::int64_t before = 0;
  for (std::int64_t requests = 1; requests <= 4096; requests *= 2) {
    Capacity c = roomy();
    c.max_requests = requests;
    c.max_query_rows = requests * 4;
    const PlanBounds b = plan_bounds(std::span(&spec, 1), c, {}, std::span(&target, 1));
    EXPECT_GE(b.plan_words, before);
    before = b.plan_words;
  }
}

}  // namespace
}  // namespace plait::test
