// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Captures and the graphs that they leave.
#include <string>

#include "cuda_fake/fake_executor.h"

namespace plait::cuda {
namespace {

TEST_F(FakeExecutor, PlanInsideACaptureIsRefusedAndHarmsNothing) {
  make_context();
  make_operands();
  const auto executor = make_executor();
  executor->upload(plan({1}, 8), {});
  CuStream stream = make_stream();
  const Driver& driver = context_->driver();
  driver.check(driver.stream_begin_capture(stream, CuCaptureMode::kThreadLocal), "begin");
  try {
    executor->upload(plan({1, 1}, 8), Stream{stream});
    FAIL() << "a graph must not contain an upload";
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), "plan.stream");
  }
  CuGraph graph = nullptr;
  driver.check(driver.stream_end_capture(stream, &graph), "end");
  driver.graph_destroy(graph);
  driver.stream_destroy(stream);
}

TEST_F(FakeExecutor, RunInACaptureThatIsInvalidIsRefusedByName) {
  make_context();
  make_operands();
  const auto executor = make_executor();
  executor->upload(plan({1}, 8), {});
  CuStream stream = make_stream();
  const Driver& driver = context_->driver();
  driver.check(driver.stream_begin_capture(stream, CuCaptureMode::kThreadLocal), "begin");
  CuDevicePtr memory = 0;
  {
    const ContextScope scope(*context_);
    EXPECT_NE(driver.mem_alloc(&memory, 256), kCuSuccess) << "what no capture survives";
  }
  args_.stream.handle = stream;
  try {
    executor->run(args_);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_EQ(error.field(), "run.stream");
  }
  EXPECT_TRUE(executor->living_captures().empty());
  CuGraph graph = nullptr;
  EXPECT_NE(driver.stream_end_capture(stream, &graph), kCuSuccess);
  args_.stream.handle = nullptr;
  EXPECT_NO_THROW(executor->run(args_));
  driver.stream_destroy(stream);
}

TEST_F(FakeExecutor, GraphOwnsTheWorkspaceUntilItEnds) {
  make_context();
  make_operands();
  auto executor = make_executor();
  executor->upload(plan({1}, 8), {});
  CuStream stream = make_stream();
  const Driver& driver = context_->driver();
  driver.check(driver.stream_begin_capture(stream, CuCaptureMode::kThreadLocal), "begin");
  args_.stream.handle = stream;
  executor->run(args_);
  executor->run(args_);
  CuGraph graph = nullptr;
  CuGraphExec exec = nullptr;
  driver.check(driver.stream_end_capture(stream, &graph), "end");
  driver.check(driver.graph_instantiate(&exec, graph, 0), "instantiate");
  EXPECT_EQ(fake_state().user_objects.size(), 1u) << "one per capture, not one per layer";
  EXPECT_EQ(executor->living_captures().size(), 1u);
  driver.graph_destroy(graph);
  EXPECT_EQ(executor->living_captures().size(), 1u);

  executor.reset();
  release_parked();
  EXPECT_EQ(fake_state().device_memory.size(), 2u) << "operands and the graph's workspace";
  EXPECT_EQ(fake_state().modules.size(), 2u);
  driver.graph_exec_destroy(exec);
  EXPECT_EQ(fake_state().device_memory.size(), 2u) << "not freed inside the driver's callback";
  release_parked();
  EXPECT_EQ(fake_state().device_memory.size(), 1u);
  EXPECT_EQ(fake_state().modules.size(), 0u);
  driver.stream_destroy(stream);
  release_all();
  EXPECT_EQ(fake_state().alive(), 0u);
}

TEST_F(FakeExecutor, CapturesThatTakeTurnsAreTwo) {
  make_context();
  make_operands();
  const auto executor = make_executor();
  executor->upload(plan({1}, 8), {});
  const Driver& driver = context_->driver();
  CuStream streams[] = {make_stream(), make_stream()};
  for (CuStream stream : streams) {
    driver.check(driver.stream_begin_capture(stream, CuCaptureMode::kThreadLocal), "begin");
  }
  for (int layer = 0; layer < 3; ++layer) {
    for (CuStream stream : streams) {
      args_.stream.handle = stream;
      executor->run(args_);
    }
  }
  EXPECT_EQ(executor->living_captures().size(), 2u);
  EXPECT_EQ(fake_state().user_objects.size(), 2u);
  std::size_t left = 2;
  for (CuStream stream : streams) {
    CuGraph graph = nullptr;
    driver.check(driver.stream_end_capture(stream, &graph), "end");
    driver.graph_destroy(graph);
    EXPECT_EQ(executor->living_captures().size(), --left);
    driver.stream_destroy(stream);
  }
}

TEST_F(FakeExecutor, PlanThatALivingGraphCannotServeIsRefused) {
  make_context();
  make_operands();
  const auto executor = make_executor();
  executor->upload(plan({1}, 4), {});
  CuStream stream = make_stream();
  const Driver& driver = context_->driver();
  driver.check(driver.stream_begin_capture(stream, CuCaptureMode::kThreadLocal), "begin");
  args_.stream.handle = stream;
  executor->run(args_);
  CuGraph graph = nullptr;
  driver.check(driver.stream_end_capture(stream, &graph), "end");
  try {
    executor->upload(plan({1}, 4, 2), {});
    FAIL() << "the graph has no page ids for a second view";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_NE(error.value().find("page_ids of view 1"), std::string::npos) << error.value();
  }
  EXPECT_NO_THROW(executor->upload(plan({1, 1}, 4), {}));
  driver.graph_destroy(graph);
  EXPECT_NO_THROW(executor->upload(plan({1}, 4, 2), {})) << "no graph is left";
  driver.stream_destroy(stream);
}

TEST_F(FakeExecutor, CapturedRunNeedsEveryOperand) {
  make_context();
  make_operands();
  const auto executor = make_executor();
  executor->upload(plan({0}, 4), {});
  CuStream stream = make_stream();
  const Driver& driver = context_->driver();
  args_.stream.handle = stream;
  args_.q.data = nullptr;
  EXPECT_NO_THROW(executor->run(args_)) << "nothing to do, nothing captured";
  driver.check(driver.stream_begin_capture(stream, CuCaptureMode::kThreadLocal), "begin");
  try {
    executor->run(args_);
    FAIL() << "a later plan would read queries from nowhere";
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), "q");
  }
  CuGraph graph = nullptr;
  driver.check(driver.stream_end_capture(stream, &graph), "end");
  driver.graph_destroy(graph);
  driver.stream_destroy(stream);
}

}  // namespace
}  // namespace plait::cuda
