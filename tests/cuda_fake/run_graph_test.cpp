// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Runs that come back are launched as graphs.
#include <functional>
#include <string>
#include <vector>

#include "cuda/run_graphs.h"
#include "cuda_fake/fake_executor.h"

namespace plait::cuda {
namespace {

class RunGraph : public FakeExecutor {
 protected:
  void SetUp() override {
    make_context();
    make_operands();
  }

  /// A step of one layer whose output begins at a row of its own.
  void step(CudaExecutor& executor, const std::vector<int>& rows, std::int64_t output = 0) {
    executor.upload(plan(rows, 8), {});
    run(executor, output);
  }
  void run(CudaExecutor& executor, std::int64_t output = 0) {
    RunArgs args = args_;
    args.o.data = static_cast<std::uint16_t*>(args_.o.data) + output * args_.o.strides[0];
    executor.run(args);
  }

  /// Launches and launches of graphs since the last call; not those that graphs were made of.
  struct Counts {
    std::size_t launches = 0;
    std::int64_t graphs = 0;
    friend bool operator==(const Counts&, const Counts&) = default;
  };
  Counts counts() {
    Counts result{0, fake_state().graph_launches};
    for (const fake::Launch& launch : fake_state().launches) result.launches += !launch.captured;
    fake_state().launches.clear();
    fake_state().graph_launches = 0;
    return result;
  }
};

TEST_F(RunGraph, TheThirdStepLaunchesWhatTheFirstDid) {
  const auto executor = make_executor();
  step(*executor, {1, 1});
  step(*executor, {1, 1});
  EXPECT_EQ(counts(), (Counts{2, 0}));
  EXPECT_EQ(fake_state().graph_execs, 0u) << "made by plans, not by runs";
  executor->upload(plan({1, 1, 1}, 8), {});
  ASSERT_EQ(fake_state().launches.size(), 1u);
  EXPECT_TRUE(fake_state().launches[0].captured);
  EXPECT_TRUE(fake_state().graphs.empty()) << "what it was made of";
  for (int layer = 0; layer < 3; ++layer) run(*executor);
  EXPECT_EQ(counts(), (Counts{0, 3}));
  step(*executor, {1});
  EXPECT_EQ(counts(), (Counts{0, 1})) << "plans are no parameters";
}

TEST_F(RunGraph, EveryKernelOfARunIsInItsGraph) {
  policy_.kind = PolicyKind::kFixedChunk;
  policy_.kv_chunk = 64;
  capacity_.max_kv_tokens = 2048;
  capacity_.min_kv_chunk = 64;
  const auto executor = make_executor();
  const auto merging_step = [&] {
    executor->upload(plan({32}, 128), {});
    run(*executor);
  };
  for (int i = 0; i < 2; ++i) {
    merging_step();
    merging_step();
    step(*executor, {1, 120});
  }
  std::vector<fake::Launch> captured;
  for (const fake::Launch& launch : fake_state().launches) {
    if (launch.captured) captured.push_back(launch);
  }
  step(*executor, {1, 120});
  captured.insert(captured.end(), fake_state().launches.end() - 2, fake_state().launches.end());
  ASSERT_EQ(captured.size(), 4u);
  EXPECT_EQ(params_of(captured[0]).merge_role, device::kMergeLater);
  EXPECT_EQ(params_of(captured[1]).merge_role, device::kMergeOnly);
  EXPECT_EQ(params_of(captured[2]).class_index, 0);
  EXPECT_EQ(params_of(captured[3]).class_index, 1);
  EXPECT_EQ(fake_state().edges, (std::vector<fake::Edge>{{1, 2, true}, {1, 2, true}}));
  EXPECT_EQ(counts(), (Counts{8, 3})) << "of seven runs, two of each kind were launches";
}

TEST_F(RunGraph, ARunFromAGraphAsksTheDriverForAsMuchAsALaunch) {
  const auto executor = make_executor();
  const auto calls_of_run = [&] {
    const std::int64_t before = fake_state().calls;
    run(*executor);
    return fake_state().calls - before;
  };
  step(*executor, {1, 1});
  const std::int64_t launched = calls_of_run();
  step(*executor, {1, 1});
  counts();
  EXPECT_EQ(calls_of_run(), launched);
  EXPECT_EQ(counts(), (Counts{0, 1}));
}

TEST_F(RunGraph, OperandsThatMoveEveryStepLeaveNothing) {
  const auto executor = make_executor();
  for (int i = 0; i < kRows; ++i) step(*executor, {1, 1}, i);
  EXPECT_EQ(counts(), (Counts{kRows, 0}));
  EXPECT_EQ(fake_state().graph_execs, 0u);
}

TEST_F(RunGraph, OperandsThatComeBackOnceLeaveFew) {
  const auto executor = make_executor();
  // Each output is met by two steps, which asks for a graph, and by no other.
  std::int64_t steps = 0;
  const auto moving_steps = [&](std::int64_t count) {
    for (const std::int64_t end = steps + count; steps < end; ++steps) {
      step(*executor, {1, 1}, 64 + steps / 2);
    }
  };
  moving_steps(400);
  EXPECT_EQ(fake_state().graph_execs, RunGraphs::kMostUnproven);
  EXPECT_EQ(counts(), (Counts{400, 0}));
  moving_steps(RunGraphs::kIdlePlans);
  EXPECT_EQ(fake_state().graph_execs, RunGraphs::kMostUnproven);
  EXPECT_EQ(counts(), (Counts{RunGraphs::kIdlePlans, 0}));
  // Those that stay get theirs when the unproven ones have been idle for long, and then at once.
  constexpr int kLayers = 50;
  const auto steps_of_layers = [&](std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      executor->upload(plan({1, 1}, 8), {});
      for (int layer = 0; layer < kLayers; ++layer) run(*executor, layer);
    }
  };
  steps_of_layers(RunGraphs::kIdlePlans + kLayers);
  counts();
  steps_of_layers(1);
  EXPECT_EQ(counts(), (Counts{0, kLayers}));
  EXPECT_EQ(fake_state().graph_execs, static_cast<std::size_t>(executor->num_run_graphs()));
  EXPECT_LT(fake_state().graph_execs, kLayers + RunGraphs::kMostUnproven);
}

TEST_F(RunGraph, WhateverARunIsGivenDistinguishesIt) {
  const auto executor = make_executor();
  for (int i = 0; i < 3; ++i) step(*executor, {1, 1});
  counts();
  const auto launches_with = [&](const std::function<void(RunArgs&)>& change) {
    RunArgs args = args_;
    change(args);
    executor->run(args);
    return counts().launches;
  };
  EXPECT_EQ(launches_with([](RunArgs&) {}), 0u);
  EXPECT_EQ(launches_with([](RunArgs& args) { args.k_scale = 0.5F; }), 1u);
  EXPECT_EQ(launches_with([](RunArgs& args) { args.v_scale = 0.5F; }), 1u);
  EXPECT_EQ(launches_with([](RunArgs& args) { args.state = true; }), 1u);
  EXPECT_EQ(launches_with([](RunArgs& args) { args.q.strides[0] *= 2; }), 1u);
  EXPECT_EQ(launches_with([](RunArgs& args) { args.k.shape[0] -= 1; }), 1u);
  EXPECT_EQ(launches_with([](RunArgs& args) { args.lse.data = args.q.data; }), 1u);
}

TEST_F(RunGraph, PageListsOfSimilarLengthShareAGraph) {
  const auto executor = make_executor();
  const auto step_with = [&](std::int64_t pages) {
    executor->upload(plan({1, 1}, 8), {});
    ids_.shape[0] = pages;
    run(*executor);
  };
  for (const std::int64_t pages : {32, 40, 50, 63}) step_with(pages);
  EXPECT_EQ(counts(), (Counts{2, 2}));
  step_with(31);
  EXPECT_EQ(counts(), (Counts{1, 0})) << "nothing is prefetched behind a list's end";
}

TEST_F(RunGraph, ACaptureGetsLaunches) {
  const auto executor = make_executor();
  for (int i = 0; i < 3; ++i) step(*executor, {1, 1});
  EXPECT_EQ(counts(), (Counts{2, 1}));
  CuStream stream = make_stream();
  const Driver& driver = context_->driver();
  driver.check(driver.stream_begin_capture(stream, CuCaptureMode::kThreadLocal), "begin");
  args_.stream.handle = stream;
  run(*executor);
  CuGraph graph = nullptr;
  driver.check(driver.stream_end_capture(stream, &graph), "end");
  ASSERT_EQ(fake_state().launches.size(), 2u) << "of every class, for later plans";
  EXPECT_EQ(fake_state().graph_launches, 0);
  driver.graph_destroy(graph);
  counts();
  run(*executor);
  EXPECT_EQ(counts(), (Counts{0, 1})) << "whatever the stream";
  driver.stream_destroy(stream);
}

TEST_F(RunGraph, ThereAreNoMoreThanAllowedAndIdleOnesGiveWay) {
  engine_options_.run_graphs = 2;
  const auto executor = make_executor();
  const auto steps_of_layers = [&](int first, int last) {
    executor->upload(plan({1, 1}, 8), {});
    for (int layer = first; layer < last; ++layer) run(*executor, layer);
  };
  for (int i = 0; i < 4; ++i) steps_of_layers(0, 3);
  counts();
  steps_of_layers(0, 3);
  EXPECT_EQ(counts(), (Counts{1, 2}));
  EXPECT_EQ(fake_state().graph_execs, 2u);
  // Layer 1 is used no more.
  for (std::int64_t i = 0; i < RunGraphs::kIdlePlans + 3; ++i) {
    executor->upload(plan({1, 1}, 8), {});
    run(*executor, 0);
    run(*executor, 2);
  }
  counts();
  steps_of_layers(0, 3);
  EXPECT_EQ(counts(), (Counts{1, 2}));
  run(*executor, 2);
  EXPECT_EQ(counts(), (Counts{0, 1}));
  EXPECT_EQ(fake_state().graph_execs, 2u);
}

TEST_F(RunGraph, APlanMakesFewOfThem) {
  const auto executor = make_executor();
  const auto steps_of_layers = [&] {
    executor->upload(plan({1, 1}, 8), {});
    for (int layer = 0; layer < 20; ++layer) run(*executor, layer);
  };
  for (int i = 0; i < 2; ++i) steps_of_layers();
  static_assert(RunGraphs::kMadePerPlan == 4);
  for (const std::size_t expected : {4u, 8u, 12u, 16u, 20u, 20u}) {
    steps_of_layers();
    EXPECT_EQ(fake_state().graph_execs, expected);
  }
  counts();
  steps_of_layers();
  EXPECT_EQ(counts(), (Counts{0, 20}));
}

TEST_F(RunGraph, NoneIfNoneIsWanted) {
  engine_options_.run_graphs = 0;
  const auto executor = make_executor();
  for (int i = 0; i < 4; ++i) step(*executor, {1, 1});
  EXPECT_EQ(counts(), (Counts{4, 0}));
}

TEST_F(RunGraph, WhatTheDriverRefusesStaysALaunch) {
  // The calls of a plan that makes a graph fail one after the other: those behind the upload's own.
  const std::int64_t upload_calls = [&] {
    const auto executor = make_executor();
    step(*executor, {1, 120});
    const std::int64_t before = fake_state().calls;
    executor->upload(plan({1, 120}, 8), {});
    return fake_state().calls - before;
  }();
  std::int64_t refused = 0;
  for (std::int64_t failing = 1;; ++failing) {
    ASSERT_LT(failing, 100);
    const auto executor = make_executor();
    for (int i = 0; i < 2; ++i) step(*executor, {1, 120});
    fake_state().calls = 0;
    fake_state().fail_at = upload_calls + failing;
    executor->upload(plan({1, 120}, 8), {});
    const bool reached = fake_state().calls >= fake_state().fail_at;
    fake_state().fail_at = 0;
    EXPECT_TRUE(fake_state().graphs.empty());
    EXPECT_EQ(fake_state().graph_execs, reached ? 0u : 1u) << failing;
    if (!reached) break;
    ++refused;
    counts();
    run(*executor);
    EXPECT_EQ(counts(), (Counts{2, 0})) << failing;
    if (failing > 1) continue;
    for (std::int64_t i = 0; i < RunGraphs::kIdlePlans; ++i) step(*executor, {1, 120});
    EXPECT_EQ(fake_state().graph_execs, 0u) << "not tried at every plan";
    for (int i = 0; i < 2; ++i) step(*executor, {1, 120});
    EXPECT_EQ(fake_state().graph_execs, 1u);
  }
  EXPECT_EQ(refused, 5) << "create, two kernels, their edge, instantiate";
}

TEST_F(RunGraph, IsNotMadeOfRunsThatWereRefused) {
  const auto executor = make_executor();
  for (int i = 0; i < 3; ++i) {
    executor->upload(plan({1, 1}, 8), {});
    fake_state().calls = 0;
    fake_state().fail_at = 2;  // after the question whether the stream is captured
    EXPECT_THROW(run(*executor), Error);
    fake_state().fail_at = 0;
  }
  step(*executor, {1, 1});
  step(*executor, {1, 1});
  EXPECT_EQ(fake_state().graph_execs, 0u) << "seen once before this plan";
  executor->upload(plan({1, 1}, 8), {});
  EXPECT_EQ(fake_state().graph_execs, 1u);
}

TEST_F(RunGraph, ThatFailsToLaunchIsReported) {
  const auto executor = make_executor();
  for (int i = 0; i < 3; ++i) step(*executor, {1, 1});
  fake_state().calls = 0;
  fake_state().fail_at = 2;  // after the question whether the stream is captured
  try {
    run(*executor);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), "cuGraphLaunch");
  }
  fake_state().fail_at = 0;
  EXPECT_NO_THROW(run(*executor));
}

TEST_F(RunGraph, EndsWithTheExecutor) {
  auto executor = make_executor();
  for (int i = 0; i < 3; ++i) step(*executor, {1, 120});
  EXPECT_EQ(fake_state().graph_execs, 1u);
  const auto other = DeviceContext::get(1);
  {
    const ContextScope scope(*other);
    executor.reset();
    EXPECT_EQ(fake_state().context_stack, std::vector<int>{1});
  }
  EXPECT_EQ(fake_state().graph_execs, 0u);
  release_all();
}

}  // namespace
}  // namespace plait::cuda
