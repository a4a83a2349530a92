// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The free operations: what happens when any call fails, and addresses that do not fit.
#include <stdlib.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda_fake/fake_executor.h"

namespace plait::cuda {
namespace {

/// A cache with "kernels" that only the fake driver would accept, for the process, which has no
/// compiler.
const std::string& prepared_cache() {
  static const test::TemporaryDirectory directory;
  static const std::string path = [] {
    ::setenv("PLAIT_NVRTC", "/no/such/libnvrtc.so", 1);
    ::setenv("PLAIT_CACHE_DIR", directory.path("cache").c_str(), 1);
    DiskCache disk(directory.path("cache"));
    for (const char* text :
         {"common merge_state q=f32 k=f32 o=f32", "common merge_states q=f32 k=f32 o=f32",
          "common finalize_state q=f32 k=f32 o=f32", "common append_paged_kv q=f32 k=f32 o=f32",
          "common apply_rope hooks=ropehalf q=f32 k=f32 o=f32"}) {
      const CompileUnit unit =
          make_compile_unit(parse_kernel_key(text), Arch{90, 'a'}, {}, SourceSet::embedded());
      disk.get_or_build(disk_key(unit, {{13, 0}}), [&] {
        CompiledKernel kernel;
        kernel.symbol = unit.symbol;
        kernel.cubin = {'c', 'o', 'd', 'e'};
        kernel.launch = {128, 0, 1, 1};
        return kernel;
      });
    }
    return disk.directory();
  }();
  return path;
}

class FakeOperations : public FakeExecutor {
 protected:
  static constexpr std::int64_t kTokens = 3;

  FakeOperations() { prepared_cache(); }

  Tensor tensor(DType dtype, std::initializer_list<std::int64_t> shape) const {
    return Tensor::contiguous(reinterpret_cast<void*>(memory_.address()), dtype, shape,
                              {DeviceKind::kCuda, 0});
  }

  /// Every operation once, on the tensors below as they are then.
  struct Call {
    const char* name;
    std::function<void(Operations&)> call;
  };
  std::vector<Call> calls() {
    rows_ = tensor(DType::kF32, {kTokens, 2, 8});
    lse_ = tensor(DType::kF32, {kTokens, 2});
    states_ = tensor(DType::kF32, {kTokens, 4, 2, 8});
    state_lse_ = tensor(DType::kF32, {kTokens, 4, 2});
    cache_ = tensor(DType::kF32, {4, 2, 2, 8});
    numbers_ = tensor(DType::kI32, {kTokens});
    RopeSpec rope;
    rope.kind = RopeKind::kHalf;
    return {{"merge_state",
             [this](Operations& ops) {
               ops.merge_state(rows_, lse_, rows_, lse_, rows_, lse_, {}, {});
             }},
            {"merge_states",
             [this](Operations& ops) { ops.merge_states(states_, state_lse_, rows_, lse_, {}); }},
            {"finalize_state",
             [this](Operations& ops) { ops.finalize_state(rows_, lse_, {}, rows_, {}); }},
            {"append_paged_kv",
             [this](Operations& ops) {
               ops.append_paged_kv(rows_, rows_, numbers_, numbers_, numbers_, numbers_, cache_,
                                   cache_, KvLayout::kNhd, 1.0F, 1.0F, {});
             }},
            {"apply_rope",
             [this, rope](Operations& ops) { ops.apply_rope(rows_, numbers_, rope, rows_, {}); }}};
  }

  static std::unique_ptr<Operations> make_operations() {
    EngineOptions options;
    options.device = {DeviceKind::kCuda, 0};
    return make_cuda_operations(options);
  }

  Tensor rows_, lse_, states_, state_lse_, cache_, numbers_;
};

TEST_F(FakeOperations, EveryFailingCallIsReportedAndLeaksNothing) {
  expect_every_failure_is_reported(30, [&](const auto& through) {
    const auto operations = make_operations();
    for (const Call& call : calls()) call.call(*operations);
    through();
  });
}

TEST_F(FakeOperations, WorkAfterACallThatFailed) {
  make_context();
  make_operands();
  const auto operations = make_operations();
  for (const Call& call : calls()) {
    fake_state().launches.clear();
    for (std::int64_t fail_at = 1;; ++fail_at) {
      fake_state().calls = 0;
      fake_state().fail_at = fail_at;
      bool failed = false;
      try {
        call.call(*operations);
      } catch (const Error&) {
        failed = true;
      }
      if (!failed) break;
      EXPECT_TRUE(fake_state().launches.empty()) << call.name << ", call " << fail_at;
    }
    fake_state().fail_at = 0;
    EXPECT_EQ(fake_state().launches.size(), 1u) << call.name;
  }
}

TEST_F(FakeOperations, EachCaptureKeepsOneObjectAlsoWhereCapturesTakeTurns) {
  make_context();
  make_operands();
  auto operations = make_operations();
  calls();
  const auto merge = [&](CuStream stream) {
    Stream on;
    on.handle = stream;
    operations->merge_state(rows_, lse_, rows_, lse_, rows_, lse_, {}, on);
  };
  merge(nullptr);  // loads the kernel, which no capture may
  const Driver& driver = context_->driver();
  CuStream streams[] = {make_stream(), make_stream()};
  for (int round = 1; round <= 2; ++round) {
    for (CuStream stream : streams) {
      driver.check(driver.stream_begin_capture(stream, CuCaptureMode::kThreadLocal), "begin");
    }
    for (int layer = 0; layer < 3; ++layer) {
      for (CuStream stream : streams) merge(stream);
    }
    EXPECT_EQ(fake_state().user_objects.size(), 2u) << "round " << round;
    for (CuStream stream : streams) {
      CuGraph graph = nullptr;
      driver.check(driver.stream_end_capture(stream, &graph), "end");
      driver.graph_destroy(graph);
    }
    EXPECT_EQ(fake_state().user_objects.size(), 0u) << "round " << round;
  }
  for (CuStream stream : streams) driver.stream_destroy(stream);
  operations.reset();
  release_parked();
  EXPECT_TRUE(fake_state().modules.empty()) << "no capture is left that keeps them";
}

TEST_F(FakeOperations, OperandsOnTheHostOrMisalignedAreRefusedByName) {
  make_context();
  make_operands();
  const auto operations = make_operations();
  std::vector<float> host(4096);
  const auto other_context = DeviceContext::get(1);
  const DeviceBuffer other(other_context, 1 << 20, "test");
  const std::vector<Call> all = calls();
  for (const auto& [data, what] :
       {std::pair<void*, const char*>{host.data(), "an address in host memory"},
        {reinterpret_cast<void*>(other.address()), "memory of cuda:1"},
        {reinterpret_cast<char*>(memory_.address()) + 1, "an address 1 bytes past"}}) {
    for (Tensor* operand : {&rows_, &lse_, &states_, &state_lse_, &cache_, &numbers_}) {
      int refusals = 0;
      for (const Call& call : all) {
        const Tensor good = *operand;
        operand->data = data;
        fake_state().launches.clear();
        try {
          call.call(*operations);
        } catch (const Error& error) {
          ++refusals;
          EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << call.name;
          EXPECT_EQ(error.value().rfind(what, 0), 0u) << error.what();
          EXPECT_FALSE(error.field().empty()) << call.name;
          EXPECT_TRUE(fake_state().launches.empty()) << call.name;
        }
        *operand = good;
      }
      EXPECT_GT(refusals, 0) << what;
    }
  }
}

}  // namespace
}  // namespace plait::cuda
