// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Field cases 28 and 40: plans and runs behind work that takes longer than the host needs to go on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "cuda/gpu_support.h"
#include "cuda/jit/kernel_cache.h"
#include "plait/attention.h"
#include "support/temporary_directory.h"

namespace plait::cuda {
namespace {

constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kDim = 64;
constexpr int kPageSize = 16;
constexpr int kRequests = 3;
constexpr int kPages = 12;
constexpr std::size_t kQueryWords = std::size_t{kRequests} * kHeads * kDim / 2;  // pairs of bf16

class GpuStreamOrder : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (Nvrtc::find() == nullptr) GTEST_SKIP() << "no NVRTC for the slow kernel";
    auto files = SourceSet::embedded().files();
    files["cuda/kernels/common/self_test.cu"] = R"(
#include "cuda/kernels/common/launch_info.h"
#include "cuda/kernels/device/ptx_sm80.h"
PLAIT_LAUNCH_INFO(64, 0, 1, 1);
extern "C" __global__ void PLAIT_KERNEL_NAME(const unsigned* in, unsigned* out, unsigned words,
                                             unsigned nanoseconds) {
  using namespace plait::device;
  const u64 end = global_nanoseconds() + nanoseconds;
  while (global_nanoseconds() < end) {
  }
  for (unsigned i = threadIdx.x; i < words; i += 64) out[i] = in[i];
}
)";
    KernelCache cache(&Nvrtc::get(), driver().version(), SourceSet(std::move(files)),
                      directory_.path("cache"));
    slow_ = cache.loaded(context_, parse_kernel_key("common self_test"));

    Capacity capacity;
    capacity.max_requests = kRequests;
    capacity.max_query_rows = kRequests;
    capacity.max_kv_tokens = kPages * kPageSize;
    engine_ = std::make_unique<Engine>(test_engine());
    attention_ =
        std::make_unique<Attention>(*engine_, std::vector{spec_}, capacity, Attention::Options{});

    const std::size_t pool = std::size_t{kPages} * kPageSize * kKvHeads * kDim;
    k_ = std::make_unique<DeviceArray<std::uint16_t>>(context_, pool);
    v_ = std::make_unique<DeviceArray<std::uint16_t>>(context_, pool);
    for (std::size_t i = 0; i < pool; ++i) {
      k_->host[i] = bf16_of(std::sin(static_cast<float>(i)));
      v_->host[i] = bf16_of(std::cos(static_cast<float>(3 * i)));
    }
    produced_ = std::make_unique<DeviceArray<std::uint32_t>>(context_, kQueryWords);
    for (std::size_t i = 0; i < kQueryWords; ++i) {
      produced_->host[i] = bf16_of(std::sin(static_cast<float>(7 * i))) * 0x10001U;
    }
    ids_ = std::make_unique<DeviceArray<std::int32_t>>(context_, kPages);
    std::iota(ids_->host.begin(), ids_->host.end(), 0);
    q_ = std::make_unique<DeviceArray<std::uint32_t>>(context_, kQueryWords);
    for (auto& o : o_) o = std::make_unique<DeviceArray<std::uint32_t>>(context_, kQueryWords);
    k_->upload();
    v_->upload();
    produced_->upload();
    ids_->upload();
  }

  /// Spins for a while and only then writes the queries.
  void produce_slowly(CuStream stream) const {
    CuDevicePtr in = produced_->address();
    CuDevicePtr out = q_->address();
    auto words = static_cast<unsigned>(kQueryWords);
    unsigned nanoseconds = 1'000'000;
    void* arguments[] = {&in, &out, &words, &nanoseconds};
    const ContextScope scope(*context_);
    launch(*slow_, {1, 1, 1}, arguments, stream);
  }

  void run(const OwnedBatch& batch, int output, CuStream stream) {
    PagedRun run(spec_, batch, q_->device(), k_->device(), v_->device(), kPages, ids_->device(),
                 o_[static_cast<std::size_t>(output)]->device(), stream);
    attention_->run(run.args());
  }

  std::vector<std::uint32_t> output(int index, CuStream stream) {
    o_[static_cast<std::size_t>(index)]->download(stream);
    return o_[static_cast<std::size_t>(index)]->host;
  }

  void poison(CuStream stream) {
    q_->poison(0xFF, stream);
    for (auto& o : o_) o->poison(0xFF, stream);
  }

  /// What a run gives if nothing is under way.
  std::vector<std::uint32_t> expected(OwnedBatch& batch, CuStream stream) {
    poison(stream);
    produce_slowly(stream);
    synchronize();
    attention_->plan(batch.get(), Stream{stream});
    synchronize();
    run(batch, 0, stream);
    synchronize();
    std::vector<std::uint32_t> result = output(0, stream);
    EXPECT_TRUE(std::none_of(result.begin(), result.end(), [](std::uint32_t pair) {
      return (pair & 0x7F80U) == 0x7F80U || (pair & 0x7F800000U) == 0x7F800000U;
    }));
    return result;
  }

  const AttentionSpec spec_ = paged_spec(kHeads, kKvHeads, kDim, kPageSize);
  test::TemporaryDirectory directory_;
  std::shared_ptr<const LoadedKernel> slow_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<DeviceArray<std::uint16_t>> k_, v_;
  std::unique_ptr<DeviceArray<std::uint32_t>> produced_, q_;
  std::unique_ptr<DeviceArray<std::uint32_t>> o_[2];
  std::unique_ptr<DeviceArray<std::int32_t>> ids_;
};

TEST_F(GpuStreamOrder, Field28PlansBehindALongKernelDoNotRace) {
  const TestStream stream(context_);
  OwnedBatch first = paged_batch({{1, 5}, {1, 64}, {1, 17}}, kPageSize);
  OwnedBatch second = paged_batch({{1, 80}, {1, 1}, {1, 33}}, kPageSize);
  const auto first_o = expected(first, stream.get());
  const auto second_o = expected(second, stream.get());
  ASSERT_NE(first_o, second_o);
  for (int round = 0; round < 100; ++round) {
    poison(stream.get());
    produce_slowly(stream.get());
    // The second plan is made while the first one's copy still waits behind the kernel.
    attention_->plan(first.get(), Stream{stream.get()});
    run(first, 0, stream.get());
    attention_->plan(second.get(), Stream{stream.get()});
    run(second, 1, stream.get());
    ASSERT_EQ(output(0, stream.get()), first_o) << "round " << round;
    ASSERT_EQ(output(1, stream.get()), second_o) << "round " << round;
  }
}

TEST_F(GpuStreamOrder, Field40RunsFollowASlowProducerOfTheirStream) {
  const TestStream stream(context_);
  OwnedBatch batch = paged_batch({{1, 5}, {1, 64}, {1, 17}}, kPageSize);
  const auto right = expected(batch, stream.get());

  poison(stream.get());
  produce_slowly(stream.get());
  run(batch, 0, stream.get());
  EXPECT_EQ(output(0, stream.get()), right);

  const ContextScope scope(*context_);
  CuGraph graph = nullptr;
  CuGraphExec exec = nullptr;
  driver().check(driver().stream_begin_capture(stream.get(), CuCaptureMode::kThreadLocal), "begin");
  produce_slowly(stream.get());
  run(batch, 0, stream.get());
  driver().check(driver().stream_end_capture(stream.get(), &graph), "end");
  driver().check(driver().graph_instantiate(&exec, graph, 0), "instantiate");
  driver().check(driver().graph_destroy(graph), "destroy");
  for (int replay = 0; replay < 3; ++replay) {
    poison(stream.get());
    driver().check(driver().graph_launch(exec, stream.get()), "cuGraphLaunch");
    EXPECT_EQ(output(0, stream.get()), right) << "replay " << replay;
  }
  driver().check(driver().graph_exec_destroy(exec), "cuGraphExecDestroy");
}

}  // namespace
}  // namespace plait::cuda
