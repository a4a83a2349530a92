// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// An executor on a libcuda without a GPU, which counts, remembers and fails as it is told.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/executor.h"
#include "cuda/graph_lifetime.h"
#include "cuda/jit/kernel_cache.h"
#include "cuda/operands.h"
#include "cuda_fake/fake_cuda.h"
#include "plait/error.h"
#include "plan/planner.h"
#include "support/temporary_directory.h"

namespace plait::cuda {

/// What that libcuda saw so far; tests assign a new one.
fake::State& fake_state();

/// Two tile classes; "kernels" that only the fake driver would accept.
class FakeFamily final : public FamilyHooks {
 public:
  std::string_view name() const noexcept override { return "fake"; }
  std::string decline_device(const DeviceFacts&) const override { return {}; }
  std::string decline(const AttentionSpec&, const DeviceFacts&) const override { return {}; }
  PlanTarget target(const AttentionSpec&, const Policy&, const DeviceFacts& facts) const override {
    PlanTarget target;
    target.num_workers = facts.sm_count;
    target.num_classes = 2;
    const CostModel cost{1000, 100, 10, 10};
    target.classes[0] = {16, 64, cost};
    target.classes[1] = {64, 64, cost};
    target.canonical = {64, 64, cost};
    return target;
  }
  KernelKey key(const KernelRequest& request) const override {
    return key_of_tile(request.tile.q_tile);
  }
  static KernelKey key_of_tile(int q_tile) {
    return parse_kernel_key("common self_test qt=" + std::to_string(q_tile));
  }
};

struct LaunchedParams {
  const std::int32_t* plan;
  std::int32_t group;
  std::int32_t class_index;
  std::int32_t merge_role;
};

inline LaunchedParams params_of(const fake::Launch& launch) {
  LaunchedParams params{};
  static_assert(sizeof(params) == fake::kKeptParameterBytes);
  std::memcpy(&params, launch.parameters.data(), sizeof(params));
  return params;
}

class FakeExecutor : public testing::Test {
 protected:
  static constexpr CudaVersion kCompiler{13, 0};
  static constexpr int kRows = 128;
  static constexpr int kPages = 64;

  FakeExecutor() {
    fake_state() = fake::State();
    const SourceSet sources(
        {{"cuda/kernels/common/self_test.cu", ""}, {"cuda/kernels/common/dtypes.h", ""}});
    DiskCache disk(directory_.path("cache"));
    for (const int q_tile : {16, 64}) {
      const CompileUnit unit =
          make_compile_unit(FakeFamily::key_of_tile(q_tile), Arch{90, 'a'}, {}, sources);
      disk.get_or_build(disk_key(unit, {kCompiler}), [&] {
        CompiledKernel kernel;
        kernel.symbol = unit.symbol;
        kernel.cubin = {'c', 'o', 'd', 'e'};
        kernel.launch = {128, 64 * 1024, 1, 1};
        return kernel;
      });
    }
    kernels_.emplace(nullptr, kCompiler, sources, directory_.path("cache"));

    AttentionSpec spec;
    spec.num_qo_heads = 4;
    spec.num_kv_heads = 2;
    spec.head_dim_qk = spec.head_dim_vo = 64;
    groups_ = {spec};
    capacity_.max_requests = 8;
    capacity_.max_query_rows = kRows;
    capacity_.max_kv_tokens = 512;
    capacity_.max_views = 2;
  }

  void make_context(int device = 0) { context_ = DeviceContext::get(device); }

  std::unique_ptr<CudaExecutor> make_executor() {
    targets_ = {family_.target(groups_[0], {}, context_->facts())};
    planner_.emplace(groups_, capacity_, policy_, targets_);
    const ExecutorRequest request{groups_,    targets_,  planner_->bounds(),
                                  &capacity_, &options_, &engine_options_};
    return std::make_unique<CudaExecutor>(family_, context_, *kernels_, request);
  }

  /// One request of `rows` query rows and `pages` pages, repeated for `views` views.
  const Plan& plan(std::vector<int> rows, int pages, int views = 1) {
    qo_indptr_ = {0};
    page_indptr_ = {0};
    last_page_len_.clear();
    for (int count : rows) {
      qo_indptr_.push_back(qo_indptr_.back() + count);
      page_indptr_.push_back(page_indptr_.back() + pages);
      last_page_len_.push_back(16);
    }
    View view;
    view.row_indptr = qo_indptr_;
    view.page_indptr = page_indptr_;
    view.last_page_len = last_page_len_;
    views_.assign(static_cast<std::size_t>(views), view);
    Batch batch;
    batch.qo_indptr = qo_indptr_;
    batch.views = views_;
    return planner_->plan(std::span<const Batch>(&batch, 1), plan_words_);
  }

  void make_operands() {
    const auto bytes = static_cast<std::int64_t>(1) << 20;
    memory_ = DeviceBuffer(context_, bytes, "test operands");
    auto* base = reinterpret_cast<std::uint16_t*>(memory_.address());
    const Device device{DeviceKind::kCuda, 0};
    ids_ = Tensor::contiguous(base, DType::kI32, {kPages}, device);
    args_ = RunArgs();
    args_.q = Tensor::contiguous(base, DType::kBF16, {kRows, 4, 64}, device);
    args_.o = args_.q;
    args_.k = Tensor::contiguous(base, DType::kBF16, {kPages, 16, 2, 64}, device);
    args_.v = args_.k;
    args_.page_ids = std::span<const Tensor>(&ids_, 1);
  }

  CuStream make_stream(unsigned flags = kCuStreamNonBlocking) {
    CuStream stream = nullptr;
    const ContextScope scope(*context_);
    context_->driver().check(context_->driver().stream_create(&stream, flags), "stream");
    return stream;
  }

  void release_all() {
    args_ = RunArgs();
    memory_ = DeviceBuffer();
    context_.reset();
    release_parked();
  }

  /// Lets call 1, 2, ... of the driver fail while `work` runs, until a round gets through without:
  /// each failure has to be reported, by code and field, and to leave nothing behind. Destructors
  /// have nobody to tell and are left out.
  template <class Work>
  void expect_every_failure_is_reported(int at_least, const Work& work) {
    int failures = 0;
    for (std::int64_t fail_at = 1;; ++fail_at) {
      ASSERT_LT(fail_at, 1000);
      fake_state() = fake::State();
      fake_state().fail_at = fail_at;
      bool failed = false;
      bool reached = true;
      try {
        make_context();
        make_operands();
        work([&] {
          reached = fake_state().calls >= fail_at;
          fake_state().fail_at = 0;
        });
      } catch (const Error& error) {
        failed = true;
        EXPECT_TRUE(error.code() == ErrorCode::kOutOfMemory || error.code() == ErrorCode::kBackend)
            << error.what();
        EXPECT_FALSE(error.field().empty()) << error.what();
      }
      EXPECT_TRUE(fake_state().context_stack.empty()) << "call " << fail_at;
      fake_state().fail_at = 0;
      release_all();
      EXPECT_EQ(fake_state().alive(), 0U) << "after call " << fail_at << " failed";
      EXPECT_EQ(failed, reached) << "call " << fail_at;
      if (!reached) break;
      ++failures;
    }
    EXPECT_GT(failures, at_least);
  }

  test::TemporaryDirectory directory_;
  FakeFamily family_;
  std::optional<KernelCache> kernels_;
  std::shared_ptr<DeviceContext> context_;
  std::vector<AttentionSpec> groups_;
  Capacity capacity_;
  Policy policy_;
  Attention::Options options_;
  EngineOptions engine_options_;
  std::vector<PlanTarget> targets_;
  std::optional<Planner> planner_;
  std::span<std::int32_t> plan_words_;  // where plan() writes, if not empty
  std::vector<std::int32_t> qo_indptr_, page_indptr_, last_page_len_;
  std::vector<View> views_;
  DeviceBuffer memory_;
  Tensor ids_;
  RunArgs args_;
};

}  // namespace plait::cuda
