// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Plans and operands of public calls: what is refused, and that a refusal changes nothing.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/owned_batch.h"
#include "engine/attention_impl.h"
#include "plait/attention.h"
#include "plait/ops.h"

namespace plait {
namespace {

template <class Body>
std::string refused(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.field();
  }
  return "";
}

AttentionSpec f32_spec() {
  AttentionSpec spec;
  spec.num_qo_heads = spec.num_kv_heads = 2;
  spec.head_dim_qk = spec.head_dim_vo = 16;
  spec.q_dtype = spec.kv_dtype = spec.o_dtype = DType::kF32;
  spec.page_size = 4;
  return spec;
}

Capacity small_capacity() {
  Capacity capacity;
  capacity.max_requests = 2;
  capacity.max_query_rows = 4;
  capacity.max_kv_tokens = 64;
  capacity.max_views = 2;
  capacity.max_row_blocks = 8;
  return capacity;
}

/// One row behind `keys` keys.
OwnedBatch one_row(std::int64_t keys) {
  OwnedBatch batch;
  batch.qo_indptr = {0, 1};
  batch.views.resize(1);
  batch.views[0].row_indptr = {0, 1};
  batch.views[0].add_list(keys, 4);
  return batch;
}

/// Two requests behind a shared view of 4 keys; each KV head has its own 3 and 9 keys more.
OwnedBatch head_lists() {
  OwnedBatch batch;
  batch.qo_indptr = {0, 2, 3};
  batch.views.resize(2);
  batch.views[0].row_indptr = {0, 3};
  batch.views[0].add_list(4, 4);
  OwnedView& own = batch.views[1];
  own.row_indptr = {0, 2, 3};
  own.per_kv_head = true;
  for (std::int64_t tokens : {3, 3, 9, 9}) own.add_list(tokens, 4);
  return batch;
}

detail::PlanFacts planned(const AttentionSpec& spec, OwnedBatch& batch, bool checked) {
  const PlanTarget target = [] {
    PlanTarget t;
    t.classes[0].q_tile = 16;
    t.classes[0].kv_tile = 16;
    return t;
  }();
  Capacity capacity = small_capacity();
  capacity.max_row_blocks = 16;
  Planner planner({&spec, 1}, capacity, Policy{}, {&target, 1});
  const Batch& view = batch.get();
  const Plan& plan = planner.plan({&view, 1});
  return detail::facts_of(view, spec, plan, 0, checked);
}

TEST(PlanFacts, MaskBytesAreWhatKernelsRead) {
  AttentionSpec spec = f32_spec();
  spec.mask = MaskKind::kCustom;
  OwnedBatch batch = head_lists();
  // 2 rows of 3 bits are one byte, 1 row of 9 two more, whatever the number of lists.
  EXPECT_EQ(planned(spec, batch, false).mask_bytes, 3);
  EXPECT_EQ(planned(f32_spec(), batch, false).mask_bytes, 0);
}

TEST(PlanFacts, PositionsOfARunAreThoseOfThePlan) {
  AttentionSpec spec = f32_spec();
  OwnedBatch batch = one_row(7);  // pages of 4 and 3 tokens
  batch.views[0].positions = {0, 16};
  const detail::PlanFacts facts = planned(spec, batch, true);
  const std::vector<std::int32_t> same{0, 16};
  const std::vector<std::int32_t> other{0, 20};
  EXPECT_EQ(refused([&] { detail::check_positions(facts, 4, 0, same); }), "");
  EXPECT_EQ(refused([&] { detail::check_positions(facts, 4, 0, other); }), "positions[0][1]");
}

TEST(PlanFacts, PositionsKnownAtRunTimeLieWithinTheKeys) {
  OwnedBatch batch = one_row(7);  // pages of 4 and 3 tokens
  batch.views[0].positions_at_run = true;
  batch.kv_len = {19};
  const detail::PlanFacts facts = planned(f32_spec(), batch, true);
  const auto field = [&](std::vector<std::int32_t> brought) {
    return refused([&] { detail::check_positions(facts, 4, 0, brought); });
  };
  EXPECT_EQ(field({0, 16}), "");  // ends with key 18
  EXPECT_EQ(field({0, 17}), "positions[0][1]");
  EXPECT_EQ(field({-1, 16}), "positions[0][0]");
}

/// Requests of 1 and 2 rows, and one without rows between them, behind a shared view of 4 keys;
/// they have 5, 4 and 7 keys.
OwnedBatch shared_view() {
  OwnedBatch batch;
  batch.qo_indptr = {0, 1, 1, 3};
  batch.views.resize(2);
  batch.views[0].row_indptr = {0, 3};
  batch.views[0].add_list(4, 4);
  batch.views[1].row_indptr = {0, 1, 1, 3};
  for (std::int64_t tokens : {1, 0, 3}) batch.views[1].add_list(tokens, 4);
  return batch;
}

TEST(PlanFacts, SharersOfARowBlockAgreeOnRopePositions) {
  AttentionSpec spec = f32_spec();
  spec.rope.kind = RopeKind::kHalf;
  spec.rope.explicit_k_positions = true;
  Capacity capacity = small_capacity();
  capacity.max_requests = 3;
  const Engine engine;
  Attention attention(engine, {spec}, capacity, {{}, true, false});
  OwnedBatch batch = shared_view();
  attention.plan(batch.get());
  std::vector<float> q(3 * 32, 0.0F), pool(3 * 4 * 32, 1.0F), o(3 * 32, -1.0F);
  std::vector<std::int32_t> prefix{0}, own{1, 2};
  const Tensor ids[] = {Tensor::contiguous(prefix.data(), DType::kI32, {1}),
                        Tensor::contiguous(own.data(), DType::kI32, {2})};
  RunArgs args;
  args.q = Tensor::contiguous(q.data(), DType::kF32, {3, 2, 16});
  args.k = args.v = Tensor::contiguous(pool.data(), DType::kF32, {3, 4, 2, 16});
  args.o = Tensor::contiguous(o.data(), DType::kF32, {3, 2, 16});
  args.page_ids = ids;
  const auto field = [&](std::vector<std::int32_t> rope) {
    args.k_rope_positions =
        Tensor::contiguous(rope.data(), DType::kI32, {static_cast<std::int64_t>(rope.size())});
    return refused([&] { attention.run(args); });
  };
  // The request without rows sees nothing, and the last keys are each request's own.
  EXPECT_EQ(field({9, 8, 7, 6, 5, 0, 0, 0, 0, 9, 8, 7, 6, 1, 2, 3}), "");
  EXPECT_EQ(field({9, 8, 7, 6, 5, 0, 0, 0, 0, 9, 8, 7, 5, 1, 2, 3}), "k_rope_positions[12]");
}

TEST(RefusedPlan, LeavesSummaryAndRunsAsTheyWere) {
  const Engine engine;
  Attention attention(engine, {f32_spec()}, small_capacity(), {{}, true, false});
  EXPECT_EQ(refused([&] { attention.summary(0); }), "group");
  OwnedBatch good = one_row(6);
  attention.plan(good.get());
  const std::int64_t items = attention.summary(0).num_items;
  OwnedBatch large = one_row(65);
  EXPECT_EQ(refused([&] { attention.plan(large.get()); }), "kv_len");
  EXPECT_EQ(attention.summary(0).num_items, items);
  std::vector<float> q(32, 0.0F), pool(2 * 4 * 2 * 16, 1.0F), o(32, -1.0F);
  std::vector<std::int32_t> ids{1, 0};
  const Tensor listed = Tensor::contiguous(ids.data(), DType::kI32, {2});
  RunArgs args;
  args.q = Tensor::contiguous(q.data(), DType::kF32, {1, 2, 16});
  args.k = args.v = Tensor::contiguous(pool.data(), DType::kF32, {2, 4, 2, 16});
  args.o = Tensor::contiguous(o.data(), DType::kF32, {1, 2, 16});
  args.page_ids = {&listed, 1};
  attention.run(args);
  EXPECT_EQ(o, std::vector<float>(32, 1.0F));
  args.o.strides[1] = 0;  // both heads at one place
  EXPECT_EQ(refused([&] { attention.run(args); }), "o.strides");
}

/// What one row sees in a run of `group`, by q = 0 and v[j] = j: the mean of its keys' positions.
float mean_position(Attention& attention, std::int32_t group, std::int64_t pages) {
  std::vector<float> q(32, 0.0F), k(16 * 4 * 32, 1.0F), v(k.size()), o(32, -1.0F);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / 32);
  std::vector<std::int32_t> ids(16);
  std::iota(ids.begin(), ids.end(), 0);
  const Tensor listed = Tensor::contiguous(ids.data(), DType::kI32, {pages});
  RunArgs args;
  args.group = group;
  args.q = Tensor::contiguous(q.data(), DType::kF32, {1, 2, 16});
  args.k = Tensor::contiguous(k.data(), DType::kF32, {16, 4, 2, 16});
  args.v = Tensor::contiguous(v.data(), DType::kF32, {16, 4, 2, 16});
  args.o = Tensor::contiguous(o.data(), DType::kF32, {1, 2, 16});
  args.page_ids = {&listed, 1};
  attention.run(args);
  return o[0];
}

TEST(RefusedPlan, OfTheSecondGroupLeavesBothGroupsAsTheyWere) {
  const Engine engine;
  AttentionSpec window = f32_spec();
  window.window_left = 3;
  for (const bool checked : {false, true}) {
    Attention attention(engine, {f32_spec(), window}, small_capacity(), {{}, checked, false});
    OwnedBatch first = one_row(9), second = one_row(13), other = one_row(5), large = one_row(65);
    const Batch good[] = {first.get(), second.get()};
    attention.plan(good);
    const std::int64_t metadata = attention.summary(0).metadata_bytes;
    // The first group's batch is fine and another one; the second group's is beyond the capacity.
    const Batch bad[] = {other.get(), large.get()};
    EXPECT_EQ(refused([&] { attention.plan(bad); }), "kv_len");
    EXPECT_EQ(attention.summary(0).metadata_bytes, metadata);
    EXPECT_EQ(mean_position(attention, 0, 3), 4.0F);   // of 0 .. 8
    EXPECT_EQ(mean_position(attention, 1, 4), 10.5F);  // of 9 .. 12
  }
}

TEST(Spec, ScaleZeroIsAScaleAndNoneTheDefault) {
  AttentionSpec none = f32_spec();
  AttentionSpec zero = f32_spec();
  zero.sm_scale = 0.0;
  EXPECT_EQ(effective_sm_scale(none), 0.25);  // 1 / sqrt(16)
  EXPECT_EQ(effective_sm_scale(zero), 0.0);
  EXPECT_NE(fingerprint(none), fingerprint(zero));
}

TEST(EngineOptions, WhatWouldBeIgnoredIsRefused) {
  EngineOptions half;
  half.allocator.allocate = [](std::int64_t, Device) -> void* { return nullptr; };
  EXPECT_EQ(refused([&] { const Engine engine(half); }), "allocator");
  EngineOptions threads;
  threads.device = {DeviceKind::kCuda, 0};
  threads.num_threads = 2;
  EXPECT_EQ(refused([&] { const Engine engine(threads); }), "num_threads");
  EngineOptions graphs;
  graphs.run_graphs = 0;
  EXPECT_EQ(refused([&] { const Engine engine(graphs); }), "run_graphs");
  graphs.device = {DeviceKind::kCuda, 0};
  graphs.run_graphs = -1;
  EXPECT_EQ(refused([&] { const Engine engine(graphs); }), "run_graphs");
  EngineOptions second_cpu;
  second_cpu.device = {DeviceKind::kCpu, 1};
  EXPECT_EQ(refused([&] { const Engine engine(second_cpu); }), "device");
}

/// One token of one head, 8 elements, into pages of 4 tokens.
class Append : public testing::Test {
 protected:
  std::string refused_call() {
    return refused([&] {
      append_paged_kv(engine_, k_, v_, zero_, zero_, indptr_, zero_, k_cache_, v_cache_, layout_);
    });
  }
  Engine engine_;
  KvLayout layout_ = KvLayout::kNhd;
  std::vector<float> memory_ = std::vector<float>(256, 1.0F);
  std::vector<std::int32_t> ints_{0, 1};
  Tensor k_ = Tensor::contiguous(memory_.data(), DType::kF32, {1, 1, 8});
  Tensor v_ = k_;
  Tensor k_cache_ = Tensor::contiguous(memory_.data() + 64, DType::kF32, {1, 4, 1, 8});
  Tensor v_cache_ = Tensor::contiguous(memory_.data() + 128, DType::kF32, {1, 4, 1, 8});
  Tensor zero_ = Tensor::contiguous(ints_.data(), DType::kI32, {1});
  Tensor indptr_ = Tensor::contiguous(ints_.data(), DType::kI32, {2});
};

TEST_F(Append, TakesOnePairOfDtypes) {
  EXPECT_EQ(refused_call(), "");
  v_.dtype = DType::kF16;
  v_cache_.dtype = DType::kF16;
  EXPECT_EQ(refused_call(), "v.dtype");
  v_.dtype = DType::kF32;
  EXPECT_EQ(refused_call(), "v_cache.dtype");
}

TEST_F(Append, RefusesPagesWithoutSlotsAndCachesThatShareThem) {
  k_cache_.strides[1] = 0;
  EXPECT_EQ(refused_call(), "k_cache.strides");
  k_cache_.strides[1] = 8;
  k_cache_.shape[1] = v_cache_.shape[1] = 0;
  EXPECT_EQ(refused_call(), "k_cache.shape");
}

TEST_F(Append, RefusesALayoutOutsideOfTheEnumeration) {
  layout_ = KvLayout{2};
  EXPECT_EQ(refused_call(), "layout");
}

TEST(MergeState, TakesStatesWithoutElements) {
  const Engine engine;
  const Tensor o = Tensor::contiguous(nullptr, DType::kF32, {3, 0, 8});
  const Tensor lse = Tensor::contiguous(nullptr, DType::kF32, {3, 0});
  EXPECT_EQ(refused([&] { merge_state(engine, o, lse, o, lse, o, lse); }), "");
}

TEST(ApplyRope, RefusesWhatItWouldIgnoreOrCutOff) {
  const Engine engine;
  std::vector<float> memory(8, 1.0F);
  std::vector<std::int32_t> zero{0};
  const Tensor positions = Tensor::contiguous(zero.data(), DType::kI32, {1});
  Tensor x = Tensor::contiguous(memory.data(), DType::kF32, {1, 1, 8});
  RopeSpec rope;
  rope.kind = RopeKind::kHalf;
  const auto field = [&] { return refused([&] { apply_rope(engine, x, positions, rope, x); }); };
  EXPECT_EQ(field(), "");
  rope.explicit_q_positions = true;
  EXPECT_EQ(field(), "rope.explicit_q_positions");
  rope.explicit_q_positions = false;
  rope.explicit_k_positions = true;
  EXPECT_EQ(field(), "rope.explicit_k_positions");
  rope.explicit_k_positions = false;
  for (std::size_t axis : {1U, 2U}) {
    x = Tensor::contiguous(memory.data(), DType::kF32, {1, 1, 8});
    x.shape[axis] = (std::int64_t{1} << 32) + 8;  // 8 in 32 bits
    EXPECT_EQ(field(), "x.shape") << axis;
  }
}

}  // namespace
}  // namespace plait
