// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a run launches, and what it checks before.
#include <functional>
#include <string>
#include <vector>

#include "cuda_fake/fake_executor.h"

namespace plait::cuda {
namespace {

TEST_F(FakeExecutor, ClassesWithoutWorkAreLaunchedIntoGraphsOnly) {
  make_context();
  make_operands();
  const auto executor = make_executor();
  executor->upload(plan({1, 1}, 8), {});
  executor->run(args_);
  ASSERT_EQ(fake_state().launches.size(), 1u);
  EXPECT_EQ(params_of(fake_state().launches[0]).class_index, 0);
  EXPECT_EQ(fake_state().launches[0].grid, 4u);
  EXPECT_EQ(fake_state().launches[0].threads, 128u);

  fake_state().launches.clear();
  executor->upload(plan({1, 120}, 8), {});
  executor->run(args_);
  ASSERT_EQ(fake_state().launches.size(), 2u);
  EXPECT_EQ(fake_state().launches[0].stream, fake_state().launches[1].stream);
  EXPECT_FALSE(fake_state().launches[0].overlaps_previous);
  EXPECT_TRUE(fake_state().launches[1].overlaps_previous);

  fake_state().launches.clear();
  executor->upload(plan({1, 1}, 8), {});
  CuStream stream = make_stream();
  const Driver& driver = context_->driver();
  driver.check(driver.stream_begin_capture(stream, CuCaptureMode::kThreadLocal), "begin");
  args_.stream.handle = stream;
  executor->run(args_);
  CuGraph graph = nullptr;
  // The fake, like the driver, refuses to end a capture with a branch that was not joined.
  driver.check(driver.stream_end_capture(stream, &graph), "end");
  ASSERT_EQ(fake_state().launches.size(), 2u);
  EXPECT_TRUE(fake_state().launches[0].captured && fake_state().launches[1].captured);
  EXPECT_NE(fake_state().launches[0].stream, fake_state().launches[1].stream);
  EXPECT_FALSE(fake_state().launches[1].overlaps_previous);
  driver.graph_destroy(graph);
  driver.stream_destroy(stream);
}

TEST_F(FakeExecutor, RunAsksTheDriverForLittle) {
  make_context();
  make_operands();
  const auto executor = make_executor();
  const auto calls_of_run = [&] {
    executor->run(args_);  // operands are checked when they are new
    const std::int64_t before = fake_state().calls;
    executor->run(args_);
    return fake_state().calls - before;
  };
  executor->upload(plan({1, 1}, 8), {});
  const std::int64_t one_class = calls_of_run();
  executor->upload(plan({1, 120}, 8), {});
  EXPECT_EQ(calls_of_run(), one_class + 1) << "a second class costs a launch and no event";
}

TEST_F(FakeExecutor, LargeMergesHaveALaunchOfTheirOwn) {
  make_context();
  make_operands();
  const auto executor = make_executor();
  executor->upload(plan({1, 1}, 8), {});
  executor->run(args_);
  ASSERT_EQ(fake_state().launches.size(), 1u);
  EXPECT_EQ(params_of(fake_state().launches[0]).merge_role, device::kMergeInPlace);

  // 64 fused rows of a tile in 32 chunks, of which the last would merge all.
  const auto roles = [&] {
    std::vector<std::int32_t> all;
    for (const fake::Launch& launch : fake_state().launches) {
      all.push_back(params_of(launch).merge_role);
    }
    return all;
  };
  policy_.kind = PolicyKind::kFixedChunk;
  policy_.kv_chunk = 64;
  capacity_.max_kv_tokens = 2048;
  capacity_.min_kv_chunk = 64;
  const auto large = make_executor();
  fake_state().launches.clear();
  large->upload(plan({32}, 128), {});
  ASSERT_GT(
      planner_->current().groups[0].largest_arrival - planner_->current().groups[0].mean_arrival,
      1000);
  large->run(args_);
  EXPECT_EQ(roles(), (std::vector<std::int32_t>{device::kMergeLater, device::kMergeOnly}));
  EXPECT_TRUE(fake_state().launches[1].overlaps_previous);
  EXPECT_EQ(fake_state().launches[0].stream, fake_state().launches[1].stream);

  // Merges of many arrivers are as evenly dealt in place.
  capacity_.max_requests = 8;
  const auto many = make_executor();
  fake_state().launches.clear();
  many->upload(plan({16, 16, 16, 16, 16, 16, 16, 16}, 128), {});
  ASSERT_GT(planner_->current().groups[0].largest_arrival, 1000);
  many->run(args_);
  EXPECT_EQ(roles(), (std::vector<std::int32_t>{device::kMergeInPlace}));
  many->upload(plan({1}, 8), {});
  large->upload(plan({32}, 128), {});

  // A graph keeps what was decided when it was captured.
  CuStream stream = make_stream();
  const Driver& driver = context_->driver();
  args_.stream.handle = stream;
  fake_state().launches.clear();
  driver.check(driver.stream_begin_capture(stream, CuCaptureMode::kThreadLocal), "begin");
  large->run(args_);
  CuGraph graph = nullptr;
  driver.check(driver.stream_end_capture(stream, &graph), "end");
  EXPECT_EQ(roles(), (std::vector<std::int32_t>{device::kMergeLater, device::kMergeLater,
                                                device::kMergeOnly}));
  EXPECT_EQ(fake_state().launches[2].stream, stream);
  EXPECT_FALSE(fake_state().launches[2].overlaps_previous);
  driver.graph_destroy(graph);
  driver.stream_destroy(stream);
}

TEST_F(FakeExecutor, MeasuredRunForgetsTheTimesOfEarlierOnes) {
  options_.measure = true;
  make_context();
  make_operands();
  const auto executor = make_executor();
  // The fake fills memory with 0xFF: times of runs that never were.
  executor->upload(plan({1}, 4), {});
  executor->run(args_);
  EXPECT_TRUE(executor->worker_times(args_.stream).empty());
}

TEST_F(FakeExecutor, OperandsAreCheckedForDeviceAndAlignment) {
  make_context();
  make_operands();
  const auto executor = make_executor();
  executor->upload(plan({1}, 4), {});
  const auto refusal = [&](auto change) -> std::string {
    const RunArgs good = args_;
    change(args_);
    std::string field = "accepted";
    try {
      executor->run(args_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      field = error.field();
    }
    args_ = good;
    return field;
  };
  const std::size_t before = fake_state().launches.size();
  std::vector<std::uint16_t> host(1 << 16);
  const auto other_context = DeviceContext::get(1);
  const DeviceBuffer other(other_context, 1 << 20, "test");
  EXPECT_EQ(refusal([&](RunArgs& args) { args.q.data = host.data(); }), "q");
  EXPECT_EQ(refusal([&](RunArgs& args) { args.k.data = reinterpret_cast<void*>(other.address()); }),
            "k");
  EXPECT_EQ(
      refusal([&](RunArgs& args) { args.v.data = static_cast<std::uint16_t*>(args.v.data) + 1; }),
      "v");
  EXPECT_EQ(refusal([&](RunArgs& args) { args.o.strides[1] = 65; }), "o.strides[1]");
  // What may be absent is read element by element.
  Tensor bad = Tensor::contiguous(host.data(), DType::kI32, {kPages}, {DeviceKind::kCpu, 0});
  const auto misaligned = [&](Tensor tensor) {
    tensor.data = reinterpret_cast<char*>(args_.q.data) + 2;
    return tensor;
  };
  struct Operand {
    const char* name;
    std::function<void(RunArgs&, const Tensor&)> set;
  };
  const Operand operands[] = {
      {"page_ids",
       [](RunArgs& args, const Tensor& t) {
         args.page_ids = {&t, 1};
       }},
      {"positions",
       [](RunArgs& args, const Tensor& t) {
         args.positions = {&t, 1};
       }},
      {"lse", [](RunArgs& args, const Tensor& t) { args.lse = t; }},
      {"k_scales", [](RunArgs& args, const Tensor& t) { args.k_scales = t; }},
      {"v_scales", [](RunArgs& args, const Tensor& t) { args.v_scales = t; }},
      {"alibi_slopes", [](RunArgs& args, const Tensor& t) { args.alibi_slopes = t; }},
      {"sink", [](RunArgs& args, const Tensor& t) { args.sink = t; }},
      {"q_rope_positions", [](RunArgs& args, const Tensor& t) { args.q_rope_positions = t; }},
      {"k_rope_positions", [](RunArgs& args, const Tensor& t) { args.k_rope_positions = t; }}};
  for (const Operand& operand : operands) {
    EXPECT_EQ(refusal([&](RunArgs& args) { operand.set(args, bad); }), operand.name) << "host";
    const Tensor shifted = misaligned(bad);
    EXPECT_EQ(refusal([&](RunArgs& args) { operand.set(args, shifted); }), operand.name)
        << "misaligned";
  }
  EXPECT_EQ(refusal([&](RunArgs& args) { args.custom_mask = bad; }), "custom_mask");
  EXPECT_EQ(fake_state().launches.size(), before) << "refused before anything was launched";
  EXPECT_EQ(refusal([](RunArgs&) {}), "accepted");
}

}  // namespace
}  // namespace plait::cuda
