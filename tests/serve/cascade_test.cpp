// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A replay's cascades against flat batches, through the engine in checked mode.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "plait/attention.h"
#include "plan/reference_target.h"
#include "serve/batch_form.h"
#include "serve/compose.h"
#include "serve/hash.h"
#include "serve/scheduler.h"
#include "serve/workload.h"

namespace plait::serve {
namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kDim = 32;
constexpr std::int32_t kPages = 6144;
constexpr std::int32_t kBudget = 256;

AttentionSpec spec() {
  AttentionSpec spec;
  spec.num_qo_heads = kHeads;
  spec.num_kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_vo = kDim;
  spec.q_dtype = spec.kv_dtype = spec.o_dtype = DType::kF32;
  spec.page_size = 16;
  spec.mask = MaskKind::kCausal;
  return spec;
}

std::vector<float> uniform(std::int64_t count, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  Random random(seed);
  for (float& value : values) value = static_cast<float>(2.0 * random.uniform() - 1.0);
  return values;
}

class Cascade : public testing::TestWithParam<PolicyKind> {
 protected:
  Cascade()
      : k_(uniform(std::int64_t{kPages} * 16 * kDim, 1)),
        v_(uniform(std::int64_t{kPages} * 16 * kDim, 2)),
        q_(uniform(std::int64_t{kBudget} * kHeads * kDim, 3)) {}

  Attention make(std::int32_t views) const {
    Capacity capacity;
    capacity.max_requests = 64;
    capacity.max_query_rows = kBudget;
    capacity.max_kv_tokens = 16384;
    capacity.max_views = views;
    return {engine_, {spec()}, capacity, {.policy = {.kind = GetParam()}, .checked = true}};
  }

  std::vector<float> run(Attention& attention, const BatchForm& form) const {
    attention.plan(form.batch());
    std::vector<Tensor> ids;
    for (int view = 0; view < form.num_views(); ++view) {
      const auto list = form.page_ids(view);
      ids.push_back(Tensor::contiguous(list.data(), DType::kI32, {std::ssize(list)}));
    }
    const std::int64_t rows = form.batch().qo_indptr.back();
    std::vector<float> o(static_cast<std::size_t>(rows * kHeads * kDim), NAN);
    RunArgs args;
    args.q = Tensor::contiguous(q_.data(), DType::kF32, {rows, kHeads, kDim});
    args.k = Tensor::contiguous(k_.data(), DType::kF32, {kPages, 16, 1, kDim});
    args.v = Tensor::contiguous(v_.data(), DType::kF32, {kPages, 16, 1, kDim});
    args.o = Tensor::contiguous(o.data(), DType::kF32, {rows, kHeads, kDim});
    args.page_ids = ids;
    attention.run(args);
    return o;
  }

  Engine engine_;
  std::vector<float> k_, v_, q_;
};

TEST_P(Cascade, EqualsFlatAtEveryDepth) {
  Trace trace = generate_workload("shared-prefix", 24, 5);
  set_rate(trace, 200.0, 5);
  SchedulerOptions options;
  options.pool_pages = kPages;
  options.token_budget = kBudget;
  options.max_running = 64;
  Scheduler scheduler(trace, options);
  Composer composer({.target = reference_target(spec()), .group_size = 4});
  Attention flat_attention = make(1);
  Attention cascade_attention = make(Composer::kMaxSharedLevels + 1);
  std::int64_t compared[1 + Composer::kMaxSharedLevels] = {};
  Step step;
  while (scheduler.next(step)) {
    std::vector<Candidate> candidates;
    for (const StepEntry& e : step.entries) {
      candidates.push_back({e.rows, e.context + e.rows, scheduler.shared_blocks(e.request)});
    }
    composer.compose(candidates);
    std::int64_t& done = compared[composer.num_levels()];
    if (composer.num_levels() > 0 && done < 6 && step.num_rows <= 64) {
      ++done;
      std::vector<StepEntry> entries;
      for (const std::int32_t i : composer.order()) {
        entries.push_back(step.entries[static_cast<std::size_t>(i)]);
      }
      BatchForm flat, cascade;
      flat.build_flat(scheduler, entries, true);
      cascade.build_composed(scheduler, entries, composer, true);
      const std::vector<float> want = run(flat_attention, flat);
      const std::vector<float> got = run(cascade_attention, cascade);
      if (GetParam() == PolicyKind::kBatchInvariant) {
        ASSERT_EQ(got, want);  // no NaN among them: equal values are equal bits but for zeros
      } else {
        for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << i;
      }
    }
    scheduler.commit(step);
  }
  EXPECT_EQ(compared[1], 6);
  EXPECT_EQ(compared[2], 6);
}

INSTANTIATE_TEST_SUITE_P(, Cascade,
                         testing::Values(PolicyKind::kThroughput, PolicyKind::kBatchInvariant),
                         [](const auto& policy) {
                           return policy.param == PolicyKind::kThroughput ? "Throughput"
                                                                          : "BatchInvariant";
                         });

}  // namespace
}  // namespace plait::serve
