// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "case.h"

namespace plait::test {
namespace {

/// `ulps` of the output dtype plus a share for the inputs' dtypes being exact.
void expect_close(const Case& problem, const Case::Answer& want, const Case::Answer& got,
                  const char* what) {
  ASSERT_EQ(got.o.size(), want.o.size());
  double tolerance = 3e-5;
  if (!problem.state) {
    if (problem.spec.o_dtype == DType::kBF16) tolerance = 1e-2;
    if (problem.spec.o_dtype == DType::kF16) tolerance = 1.5e-3;
    if (problem.spec.o_dtype == DType::kF8E4M3) tolerance = 0.063;
    if (problem.spec.o_dtype == DType::kF8E5M2) tolerance = 0.126;
  }
  int shown = 0;
  for (std::size_t i = 0; i < want.o.size() && shown < 5; ++i) {
    const double bound = tolerance * (1.0 + std::abs(want.o[i]));
    if (!(std::abs(got.o[i] - want.o[i]) <= bound)) {
      ADD_FAILURE() << what << ": o[" << i << "] is " << got.o[i] << ", expected " << want.o[i];
      ++shown;
    }
  }
  if (problem.spec.reduction != Reduction::kSoftmax) return;
  for (std::size_t i = 0; i < want.lse.size() && shown < 5; ++i) {
    if (want.lse[i] == got.lse[i]) continue;  // -inf
    if (!(std::abs(got.lse[i] - want.lse[i]) <= 2e-5 * (1.0 + std::abs(want.lse[i])))) {
      ADD_FAILURE() << what << ": lse[" << i << "] is " << got.lse[i] << ", expected "
                    << want.lse[i];
      ++shown;
    }
  }
}

/// Runs a problem unsplit, in chunks, and in canonical segments both ways.
void check(Case problem, std::uint64_t seed = 1) {
  problem.make(seed);
  const Case::Answer want = problem.reference();
  expect_close(problem, want, problem.run({}), "unsplit");
  expect_close(problem, want, problem.run({.q_tile = 16, .kv_chunk = 48}), "chunks");
  expect_close(problem, want,
               problem.run({.q_tile = 5, .kv_chunk = 16, .mark_full = false, .split_runs = true}),
               "few rows");
  const Case::Answer whole = problem.run({.segment_tokens = 128, .cost = 1});
  expect_close(problem, want, whole, "segments");
  const Case::Answer split = problem.run({.q_tile = 7,
                                          .segment_tokens = 128,
                                          .item_per_segment = true,
                                          .num_workers = 5,
                                          .split_runs = true});
  for (std::size_t i = 0; i < whole.o.size(); ++i) {
    ASSERT_TRUE(whole.o[i] == split.o[i]) << "canonical bits differ at o[" << i << "]";
  }
}

Case basic() {
  Case c;
  c.spec.num_qo_heads = 4;
  c.spec.num_kv_heads = 2;
  c.spec.head_dim_qk = 64;
  c.spec.head_dim_vo = 64;
  c.spec.q_dtype = c.spec.kv_dtype = c.spec.o_dtype = DType::kF32;
  c.spec.page_size = 16;
  c.requests = {{1, 200}, {40, 150}, {3, 0}, {5, 2}, {1, 1}};
  return c;
}

TEST(CpuExecutor, CausalPaged) { check(basic()); }

// 0 x NaN is NaN: weights of 0 do not keep a hidden key out.
TEST(CpuExecutor, ValuesOfHiddenKeysTakeNoPart) {
  for (const bool softmax : {true, false}) {
    Case c = basic();
    if (!softmax) c.spec.reduction = Reduction::kSum;
    c.make(1);
    // The last key of 40 rows over 150 keys, which the last row alone sees, and one that 11 rows
    // see.
    const std::int32_t list = (200 + c.spec.page_size - 1) / c.spec.page_size;
    for (std::int32_t h = 0; h < c.spec.num_kv_heads; ++h) {
      c.v.set(c.element(list, 149, h, 3, 64), std::numeric_limits<double>::quiet_NaN());
      c.v.set(c.element(list, 139, h, 5, 64), std::numeric_limits<double>::infinity());
    }
    for (const std::int32_t kv_chunk : {4096, 48}) {
      Case::Answer want = c.reference();
      Case::Answer got = c.run({.q_tile = 16, .kv_chunk = kv_chunk});
      std::size_t marked = 0;
      for (std::size_t i = 0; i < want.o.size(); ++i) {
        if (std::isfinite(want.o[i])) continue;
        EXPECT_FALSE(std::isfinite(got.o[i])) << i;
        got.o[i] = want.o[i] = 0.0;
        ++marked;
      }
      expect_close(c, want, got, "hidden");
      EXPECT_EQ(marked, 4U * (1 + 11));
    }
  }
}

TEST(CpuExecutor, NoMask) {
  Case c = basic();
  c.spec.mask = MaskKind::kNone;
  check(c);
}

TEST(CpuExecutor, Dtypes) {
  const DType all[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
  for (std::size_t q = 0; q < 5; ++q) {
    for (std::size_t kv = 0; kv < 5; ++kv) {
      Case c = basic();
      c.spec.head_dim_qk = c.spec.head_dim_vo = 40;
      c.requests = {{1, 100}, {9, 70}, {2, 1}};
      c.spec.q_dtype = all[q];
      c.spec.kv_dtype = all[kv];
      c.spec.o_dtype = all[(q + kv) % 5];  // a Latin square: each pair of the three is there
      SCOPED_TRACE(std::to_string(q) + " " + std::to_string(kv));
      c.k_scale = 0.5F;
      c.v_scale = 0.25F;
      check(c);
    }
  }
}

TEST(CpuExecutor, HeadDimsAndGroups) {
  for (const auto& [qk, vo, qo, kv] : std::vector<std::array<std::int32_t, 4>>{{32, 32, 3, 3},
                                                                               {72, 72, 7, 1},
                                                                               {80, 56, 9, 3},
                                                                               {136, 24, 4, 2},
                                                                               {192, 128, 8, 2},
                                                                               {576, 512, 16, 1},
                                                                               {1, 1, 2, 1},
                                                                               {17, 33, 5, 1}}) {
    Case c = basic();
    c.requests = {{1, 150}, {9, 70}};
    c.spec.head_dim_qk = qk;
    c.spec.head_dim_vo = vo;
    c.spec.num_qo_heads = qo;
    c.spec.num_kv_heads = kv;
    check(c);
  }
}

TEST(CpuExecutor, PageSizesAndLayouts) {
  for (std::int32_t page : {1, 2, 3, 5, 16, 19, 128, 544}) {
    Case c = basic();
    c.spec.page_size = page;
    c.spec.layout = page % 2 == 0 ? KvLayout::kHnd : KvLayout::kNhd;
    check(c);
  }
}

TEST(CpuExecutor, Ragged) {
  Case c = basic();
  c.spec.kv_kind = KvKind::kRagged;
  c.spec.page_size = 1;
  check(c);
}

TEST(CpuExecutor, Windows) {
  for (std::int32_t window : {0, 3, 40, 1000}) {
    for (MaskKind mask : {MaskKind::kCausal, MaskKind::kNone}) {
      Case c = basic();
      c.spec.window_left = window;
      c.spec.mask = mask;
      check(c);
    }
  }
}

TEST(CpuExecutor, CustomMask) {
  Case c = basic();
  c.spec.mask = MaskKind::kCustom;
  check(c);
  c.spec.window_left = 20;
  check(c, 2);
}

TEST(CpuExecutor, SoftCapAlibiSink) {
  Case c = basic();
  c.spec.logits_soft_cap = 2.0;
  check(c);
  c.spec.alibi = true;
  check(c, 2);
  c.spec.sink = true;
  check(c, 3);
}

TEST(CpuExecutor, Sigmoid) {
  Case c = basic();
  c.spec.reduction = Reduction::kSum;
  c.spec.sigmoid_bias = -1.5;
  check(c);
}

TEST(CpuExecutor, State) {
  Case c = basic();
  c.spec.sink = true;
  c.state = true;
  check(c);
}

TEST(CpuExecutor, PlanOfAnotherSpecIsRefused) {
  const Case mine = basic();
  AttentionSpec other = mine.spec;
  other.window_left = 7;
  const HandPlan own(mine.spec, mine.requests, {});
  const HandPlan foreign(other, mine.requests, {});
  const EngineOptions engine;
  const Capacity capacity;
  const Attention::Options options;
  const auto backend = make_cpu_backend();
  const std::vector<PlanTarget> targets{backend->target(mine.spec, options.policy, engine)};
  const auto executor = backend->make_executor(
      {{&mine.spec, 1}, targets, own.bounds(), &capacity, &options, &engine});
  EXPECT_NO_THROW(executor->upload(own.plan(), {}));
  try {
    executor->upload(foreign.plan(), {});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_EQ(error.field(), "plan");
  }
}

TEST(CpuExecutor, ManyPartialStatesLoseNothing) {
  Case c = basic();
  c.requests = {{1, 4000}};
  c.spec.page_size = 1;
  c.make(3);
  const Case::Answer want = c.reference();
  const Case::Answer got = c.run({.kv_chunk = 3});
  for (std::size_t i = 0; i < want.lse.size(); ++i) {
    EXPECT_NEAR(got.lse[i], want.lse[i], 1e-6) << "head " << i;  // half of the last place is 5e-7
  }
  for (std::size_t i = 0; i < want.o.size(); ++i) EXPECT_NEAR(got.o[i], want.o[i], 2e-7) << i;
}

TEST(CpuExecutor, ScalesPerHead) {
  Case c = basic();
  c.spec.k_scale_per_head = c.spec.v_scale_per_head = true;
  check(c);
}

TEST(CpuExecutor, Rope) {
  Case c = basic();
  c.requests = {{1, 100}, {9, 70}};
  c.spec.rope.kind = RopeKind::kHalf;
  check(c);
  c.spec.rope.kind = RopeKind::kInterleaved;
  c.spec.rope.rotary_dim = 36;
  check(c, 2);
  c.spec.rope.scaling = RopeScalingKind::kLlama31;
  c.spec.rope.factor = 8.0;
  c.spec.rope.explicit_k_positions = c.spec.rope.explicit_q_positions = true;
  check(c, 3);
}

}  // namespace
}  // namespace plait::test
