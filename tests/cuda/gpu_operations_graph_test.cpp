// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The free operations in captured graphs.
#include <cmath>
#include <optional>

#include "cuda/gpu_support.h"
#include "cuda/graph_lifetime.h"
#include "plait/error.h"
#include "plait/ops.h"

namespace plait::cuda {
namespace {

constexpr std::int64_t kRows = 5;
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kDim = 64;
constexpr std::size_t kElements = kRows * kHeads * kDim;

class GpuOperationsGraph : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    engine_.emplace(test_engine());
    x_.emplace(context_, kElements);
    rotated_.emplace(context_, kElements);
    merged_.emplace(context_, kElements);
    positions_.emplace(context_, kRows);
    lse_.emplace(context_, kRows * kHeads);
    merged_lse_.emplace(context_, kRows * kHeads);
    for (std::size_t n = 0; n < kElements; ++n) x_->host[n] = std::sin(static_cast<float>(n));
    for (std::size_t row = 0; row < kRows; ++row) {
      positions_->host[row] = static_cast<std::int32_t>(1000 * row);
    }
    for (std::size_t n = 0; n < lse_->host.size(); ++n) lse_->host[n] = static_cast<float>(n);
    x_->upload();
    positions_->upload();
    lse_->upload();
    rope_.kind = RopeKind::kHalf;
  }

  static Tensor rows(DeviceArray<float>& array) {
    return Tensor::contiguous(array.device(), DType::kF32, {kRows, kHeads, kDim}, kTestDevice);
  }
  static Tensor lse(DeviceArray<float>& array) {
    return Tensor::contiguous(array.device(), DType::kF32, {kRows, kHeads}, kTestDevice);
  }

  void rotate(CuStream stream) {
    apply_rope(*engine_, rows(*x_),
               Tensor::contiguous(positions_->device(), DType::kI32, {kRows}, kTestDevice), rope_,
               rows(*rotated_), Stream{stream});
  }
  /// Of x and its rotation.
  void merge(CuStream stream) {
    merge_state(*engine_, rows(*x_), lse(*lse_), rows(*rotated_), lse(*lse_), rows(*merged_),
                lse(*merged_lse_), {}, Stream{stream});
  }

  void begin_capture(CuStream stream) {
    const ContextScope scope(*context_);
    driver().check(driver().stream_begin_capture(stream, CuCaptureMode::kThreadLocal), "begin");
  }
  CuGraphExec end_capture(CuStream stream) {
    const ContextScope scope(*context_);
    CuGraph graph = nullptr;
    CuGraphExec exec = nullptr;
    driver().check(driver().stream_end_capture(stream, &graph), "the capture must survive");
    driver().check(driver().graph_instantiate(&exec, graph, 0), "instantiate");
    driver().check(driver().graph_destroy(graph), "destroy");
    return exec;
  }
  void destroy(CuGraphExec exec) {
    const ContextScope scope(*context_);
    driver().check(driver().graph_exec_destroy(exec), "cuGraphExecDestroy");
  }

  template <typename Call>
  void expect_refused(Call call) {
    try {
      call();
      ADD_FAILURE() << "a first call inside a capture was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
      EXPECT_EQ(error.field(), "stream");
    }
  }

  std::optional<Engine> engine_;
  std::optional<DeviceArray<float>> x_, rotated_, merged_, lse_, merged_lse_;
  std::optional<DeviceArray<std::int32_t>> positions_;
  RopeSpec rope_;
};

TEST_F(GpuOperationsGraph, FirstCallsInACaptureAreRefusedAndHarmNothing) {
  const TestStream stream(context_);
  begin_capture(stream.get());
  expect_refused([&] { rotate(stream.get()); });
  expect_refused([&] { merge(stream.get()); });
  destroy(end_capture(stream.get()));

  rotate(stream.get());
  merge(stream.get());
  begin_capture(stream.get());
  EXPECT_NO_THROW(rotate(stream.get()));
  EXPECT_NO_THROW(merge(stream.get()));
  rope_.theta = 500000;  // the kernel is there, the table is not
  expect_refused([&] { rotate(stream.get()); });
  destroy(end_capture(stream.get()));
}

TEST_F(GpuOperationsGraph, ReplaysEqualEagerCallsAndOutliveTheirEngine) {
  const TestStream stream(context_);
  rotate(stream.get());
  merge(stream.get());
  merged_->download(stream.get());
  const std::vector<float> expected = merged_->host;
  for (const float value : expected) ASSERT_TRUE(std::isfinite(value));

  begin_capture(stream.get());
  rotate(stream.get());
  merge(stream.get());
  CuGraphExec exec = end_capture(stream.get());
  engine_.reset();
  release_parked();
  // A table that was freed would be handed out again and overwritten here.
  std::vector<std::unique_ptr<DeviceArray<std::uint8_t>>> others;
  for (int n = 0; n < 64; ++n) {
    others.push_back(std::make_unique<DeviceArray<std::uint8_t>>(context_, kDim * 4));
    others.back()->poison(0xFF, stream.get());
  }
  for (int round = 0; round < 2; ++round) {
    rotated_->poison(0xFF, stream.get());
    merged_->poison(0xFF, stream.get());
    {
      const ContextScope scope(*context_);
      driver().check(driver().graph_launch(exec, stream.get()), "cuGraphLaunch");
    }
    merged_->download(stream.get());
    EXPECT_EQ(merged_->host, expected);
  }
  destroy(exec);
  release_parked();
}

}  // namespace
}  // namespace plait::cuda
