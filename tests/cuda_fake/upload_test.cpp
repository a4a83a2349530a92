// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Where plans go, and when.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda_fake/fake_executor.h"

namespace plait::cuda {
namespace {

TEST_F(FakeExecutor, UploadPutsThePlanAtAFixedAddress) {
  make_context();
  make_operands();
  const auto executor = make_executor();
  const std::int32_t* address = nullptr;
  for (const int rows : {1, 64, 3}) {
    const Plan& current = plan({rows, 1}, 8);
    executor->upload(current, {});
    executor->run(args_);
    const LaunchedParams params = params_of(fake_state().launches.back());
    if (address == nullptr) address = params.plan;
    EXPECT_EQ(params.plan, address);
    EXPECT_EQ(std::memcmp(params.plan, current.words.data(), current.words.size_bytes()), 0);
  }
}

TEST_F(FakeExecutor, PlansAreWrittenWhereTheirCopiesRead) {
  make_context();
  make_operands();
  const auto executor = make_executor();
  for (int round = 0; round < 3 * StagingRing::kSlots; ++round) {
    plan_words_ = executor->plan_words();
    EXPECT_EQ(executor->plan_words().data(), plan_words_.data()) << "the same until an upload";
    const Plan& current = plan({1 + round, 1}, 8);
    EXPECT_EQ(current.words.data(), plan_words_.data());
    executor->upload(current, {});
    const std::vector<std::int32_t> words(current.words.begin(), current.words.end());
    plan_words_ = executor->plan_words();
    EXPECT_THROW(plan({kRows, 1}, 8), Error);
    EXPECT_TRUE(std::equal(words.begin(), words.end(), planner_->current().words.begin(),
                           planner_->current().words.end()))
        << "a refused batch leaves the current plan alone";
    executor->run(args_);
    const std::int32_t* on_device = params_of(fake_state().launches.back()).plan;
    EXPECT_TRUE(std::equal(words.begin(), words.end(), on_device)) << "round " << round;
  }
}

TEST_F(FakeExecutor, UploadZeroesTheCountersOfItsMerges) {
  make_context();
  make_operands();
  policy_.kind = PolicyKind::kFixedChunk;
  policy_.kv_chunk = 64;
  capacity_.min_kv_chunk = 64;
  capacity_.max_views = 1;
  bool copied = false;
  bool set = false;
  for (const std::int64_t most_tokens : {1 << 11, 1 << 17}) {
    capacity_.max_kv_tokens = most_tokens;
    const auto executor = make_executor();
    const WorkspaceLayout layout(groups_, targets_, planner_->bounds(), false, false);
    for (int round = 0; round < 2; ++round) {
      const std::int64_t memsets = fake_state().memsets;
      const Plan& current = plan({1, 32}, 128);
      executor->upload(current, {});
      (fake_state().memsets == memsets ? copied : set) = true;
      executor->run(args_);
      const std::int32_t* words = params_of(fake_state().launches.back()).plan;
      EXPECT_EQ(std::memcmp(words, current.words.data(), current.words.size_bytes()), 0);
      const auto* group =
          reinterpret_cast<const device::GroupHeader*>(words + device::group_header_offset(0));
      ASSERT_GT(group->num_counters, 0);
      auto* counters = const_cast<std::int32_t*>(words) - layout.counters_bytes() / 4;
      for (std::int32_t i = 0; i < group->num_counters; ++i) ASSERT_EQ(counters[i], 0) << i;
      std::fill_n(counters, group->num_counters, 7);  // as an aborted run might leave them
    }
  }
  EXPECT_TRUE(copied) << "few counters are a part of the copy";
  EXPECT_TRUE(set) << "many are not";
}

TEST_F(FakeExecutor, StagingIsAwaitedOnlyWhenTheRingIsFull) {
  make_context();
  const auto executor = make_executor();
  fake::State& state = fake_state();
  constexpr int kSlots = StagingRing::kSlots;
  const auto upload = [&](CuStream stream, bool pending) {
    state.copies_pending = pending;
    executor->upload(plan({1}, 4), Stream{stream});
  };
  // One question to the driver about all slots but the last, which it has finished.
  for (int round = 0; round < 4 * kSlots; ++round) {
    upload(nullptr, false);
    EXPECT_EQ(state.event_queries, round < kSlots ? 0 : (round - kSlots) / (kSlots - 1) + 1);
  }
  EXPECT_EQ(state.event_waits_on_host, 0);
  // Copies under way: each new one waits for the oldest.
  for (int round = 0; round < 2 * kSlots; ++round) {
    upload(nullptr, true);
    EXPECT_EQ(state.event_waits_on_host, round + 1);
  }
  // A copy on one stream says nothing of those on another.
  CuStream stream = make_stream();
  state.event_waits_on_host = 0;
  upload(stream, false);
  for (int round = 1; round < kSlots; ++round) upload(nullptr, false);
  EXPECT_EQ(state.event_waits_on_host, 0);  // the copies before were on one stream
  upload(nullptr, false);                   // in the slot of the copy on `stream`
  EXPECT_EQ(state.event_waits_on_host, 1);
  context_->driver().stream_destroy(stream);
}

TEST_F(FakeExecutor, PlanOfAnotherSpecIsRefused) {
  make_context();
  make_operands();
  const auto executor = make_executor();
  executor->upload(plan({1}, 4), {});
  groups_[0].window_left = 7;
  planner_.emplace(groups_, capacity_, policy_, targets_);
  try {
    executor->upload(plan({1}, 4), {});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_EQ(error.field(), "plan");
  }
  EXPECT_NO_THROW(executor->run(args_)) << "the plan before is still there";
}

TEST_F(FakeExecutor, StreamOfAnotherDeviceIsRefusedBeforeAnythingIsCopied) {
  make_context();
  make_operands();
  const auto executor = make_executor();
  executor->upload(plan({1}, 4), {});
  executor->run(args_);
  const LaunchedParams params = params_of(fake_state().launches.back());
  const std::vector<std::int32_t> words(params.plan, params.plan + 64);
  CuStream foreign = nullptr;
  {
    const auto other = DeviceContext::get(1);
    const ContextScope scope(*other);
    context_->driver().check(context_->driver().stream_create(&foreign, 0), "stream");
  }
  try {
    executor->upload(plan({3, 1}, 8), Stream{foreign});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.field(), "plan.stream");
    EXPECT_EQ(error.value(), "a stream of cuda:1");
  }
  EXPECT_TRUE(std::equal(words.begin(), words.end(), params.plan)) << "the plan before is there";
  EXPECT_TRUE(fake_state().context_stack.empty());
  context_->driver().stream_destroy(foreign);
}

}  // namespace
}  // namespace plait::cuda
