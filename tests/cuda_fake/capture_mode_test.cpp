// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Captures that forbid their own thread, or in global mode every thread, what Plait has to do
// meanwhile.
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "cuda/run_graphs.h"
#include "cuda_fake/fake_executor.h"

namespace plait::cuda {
namespace {

class CaptureMode : public FakeExecutor {
 protected:
  void SetUp() override {
    make_context();
    make_operands();
    stream_ = make_stream();
  }
  void TearDown() override {
    context_->driver().stream_destroy(stream_);
    release_all();
    EXPECT_EQ(fake_state().alive(), 0u);
  }

  /// Does `work` while a capture is open, in this thread or beside it, which must survive.
  void beside_captures(const std::function<void()>& work) {
    const Driver& driver = context_->driver();
    for (const CuCaptureMode mode : {CuCaptureMode::kGlobal, CuCaptureMode::kThreadLocal}) {
      for (const bool own : {true, false}) {
        SCOPED_TRACE("mode " + std::to_string(static_cast<int>(mode)) +
                     (own ? ", this thread's" : ", another thread's"));
        driver.check(driver.stream_begin_capture(stream_, mode), "begin");
        if (own) {
          work();
        } else {
          std::thread(work).join();
        }
        CuGraph graph = nullptr;
        ASSERT_EQ(driver.stream_end_capture(stream_, &graph), kCuSuccess);
        driver.graph_destroy(graph);
      }
    }
  }

  void step(CudaExecutor& executor, std::int64_t output = 0) {
    executor.upload(plan({1, 120}, 8), {});
    RunArgs args = args_;
    args.o.data = static_cast<std::uint16_t*>(args_.o.data) + output * args_.o.strides[0];
    executor.run(args);
  }

  CuStream stream_ = nullptr;
};

TEST_F(CaptureMode, AnExecutorIsMadeUsedAndDestroyedBesideCaptures) {
  beside_captures([&] {
    const auto executor = make_executor();
    for (int i = 0; i < 2 * StagingRing::kSlots; ++i) step(*executor);
    executor->status({});
    EXPECT_EQ(executor->num_run_graphs(), 1);
  });
  EXPECT_EQ(fake_state().graph_execs, 0u);
  EXPECT_EQ(fake_state().device_memory.size(), 1u) << "the operands";
}

TEST_F(CaptureMode, AGraphGivesItsPlaceAwayBesideCaptures) {
  engine_options_.run_graphs = 1;
  const auto executor = make_executor();
  std::int64_t output = 0;
  for (int i = 0; i < 3; ++i) step(*executor, output);
  beside_captures([&] {
    EXPECT_EQ(executor->num_run_graphs(), 1);
    ++output;
    for (std::int64_t i = 0; i < RunGraphs::kIdlePlans + 3; ++i) step(*executor, output);
    fake_state().launches.clear();
    step(*executor, output);
    EXPECT_TRUE(fake_state().launches.empty()) << "this run has the graph now";
    EXPECT_EQ(fake_state().graph_execs, 1u);
  });
}

TEST_F(CaptureMode, WhatAnEndedGraphKeptIsFreedBesideCaptures) {
  const auto executor = make_executor();
  executor->upload(plan({1}, 8), {});
  const Driver& driver = context_->driver();
  CuStream other = make_stream();
  beside_captures([&] {
    auto ending = make_executor();
    ending->upload(plan({1}, 8), {});
    driver.check(driver.stream_begin_capture(other, CuCaptureMode::kRelaxed), "begin");
    RunArgs args = args_;
    args.stream.handle = other;
    ending->run(args);
    CuGraph graph = nullptr;
    driver.check(driver.stream_end_capture(other, &graph), "end");
    ending.reset();
    driver.graph_destroy(graph);
    EXPECT_EQ(fake_state().device_memory.size(), 3u);
    executor->upload(plan({1}, 8), {});
    EXPECT_EQ(fake_state().device_memory.size(), 2u) << "operands and one workspace";
  });
  driver.stream_destroy(other);
}

TEST_F(CaptureMode, WhatWouldEndACaptureOfAStreamThatWaitsForTheLegacyOneIsRefused) {
  constexpr unsigned kWaitsForLegacy = 0;
  const Driver& driver = context_->driver();
  const auto executor = make_executor();
  executor->upload(plan({1}, 8), {});
  CuStream captured = make_stream(kWaitsForLegacy);
  driver.check(driver.stream_begin_capture(captured, CuCaptureMode::kRelaxed), "begin");
  const auto refuses = [](const std::string& field, const auto& call) {
    try {
      call();
      ADD_FAILURE() << field << " accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch) << field;
      EXPECT_EQ(error.field(), field);
    }
  };
  refuses("attention", [&] { make_executor(); });
  refuses("plan.stream", [&] { executor->upload(plan({1, 1}, 8), {}); });
  refuses("run.stream", [&] { executor->run(args_); });
  refuses("status.stream", [&] { executor->status({}); });
  EXPECT_THROW(executor->read_i32(ids_, {}), Error);
  EXPECT_NO_THROW(executor->upload(plan({1, 1}, 8), Stream{stream_}));
  args_.stream.handle = stream_;
  EXPECT_NO_THROW(executor->run(args_));
  CuGraph graph = nullptr;
  ASSERT_EQ(driver.stream_end_capture(captured, &graph), kCuSuccess);
  driver.graph_destroy(graph);
  driver.stream_destroy(captured);
}

TEST_F(CaptureMode, ACaptureThatBeginsWhileKernelsLoadIsNotEnded) {
  constexpr unsigned kWaitsForLegacy = 0;
  const Driver& driver = context_->driver();
  CuStream captured = make_stream(kWaitsForLegacy);
  // Asked for memory late in the making: as if another thread began just then.
  engine_options_.allocator.allocate = [&](std::int64_t bytes, Device) {
    driver.check(driver.stream_begin_capture(captured, CuCaptureMode::kRelaxed), "begin");
    return std::aligned_alloc(256, static_cast<std::size_t>((bytes + 255) / 256 * 256));
  };
  engine_options_.allocator.deallocate = [](void* memory, Device) { std::free(memory); };
  try {
    make_executor();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_EQ(error.field(), "attention");
  }
  CuGraph graph = nullptr;
  EXPECT_EQ(driver.stream_end_capture(captured, &graph), kCuSuccess);
  driver.graph_destroy(graph);
  driver.stream_destroy(captured);
}

TEST_F(CaptureMode, CheckedModeIsRefusedInsideACapture) {
  const Driver& driver = context_->driver();
  options_.checked = true;
  const auto executor = make_executor();
  executor->upload(plan({1}, 8), {});
  driver.check(driver.stream_begin_capture(stream_, CuCaptureMode::kGlobal), "begin");
  args_.stream.handle = stream_;
  for (const auto& call : {std::function<void()>([&] { executor->read_i32(ids_, args_.stream); }),
                           std::function<void()>([&] { executor->run(args_); })}) {
    try {
      call();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      EXPECT_EQ(error.field(), "run.stream");
    }
  }
  CuGraph graph = nullptr;
  ASSERT_EQ(driver.stream_end_capture(stream_, &graph), kCuSuccess);
  driver.graph_destroy(graph);
}

TEST_F(CaptureMode, AnExecutorMayEndInsideACaptureOfItsRuns) {
  const Driver& driver = context_->driver();
  auto executor = make_executor();
  executor->upload(plan({1, 120}, 8), {});
  driver.check(driver.stream_begin_capture(stream_, CuCaptureMode::kGlobal), "begin");
  args_.stream.handle = stream_;
  executor->run(args_);
  executor.reset();
  CuGraph graph = nullptr;
  CuGraphExec exec = nullptr;
  driver.check(driver.stream_end_capture(stream_, &graph), "end");
  driver.check(driver.graph_instantiate(&exec, graph, 0), "instantiate");
  driver.check(driver.graph_launch(exec, stream_), "launch");
  driver.graph_exec_destroy(exec);
  driver.graph_destroy(graph);
}

}  // namespace
}  // namespace plait::cuda
