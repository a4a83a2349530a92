// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The runtime on a libcuda without a GPU: what is launched where, what happens when any call fails,
// what stays alive and what leaks.
#include "cuda/executor.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/graph_lifetime.h"
#include "cuda/jit/kernel_cache.h"
#include "cuda/operands.h"
#include "cuda_fake/fake_cuda.h"
#include "plait/error.h"
#include "plan/planner.h"
#include "support/temporary_directory.h"

namespace plait::cuda {
namespace {

// Before anything opens a driver.
const int kEnvironmentSet = ::setenv("PLAIT_LIBCUDA", PLAIT_FAKE_LIBCUDA, 1);

fake::State& fake_state() {
  static fake::State* state = [] {
    void* library = ::dlopen(PLAIT_FAKE_LIBCUDA, RTLD_NOW | RTLD_LOCAL);
    auto* get = reinterpret_cast<decltype(&plait_fake_cuda_state)>(
        ::dlsym(library, "plait_fake_cuda_state"));
    return get();
  }();
  return *state;
}

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

LaunchedParams params_of(const fake::Launch& launch) {
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
      disk.get_or_build(disk_key(unit, kCompiler), [&] {
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

  CuStream make_stream() {
    CuStream stream = nullptr;
    const ContextScope scope(*context_);
    context_->driver().check(context_->driver().stream_create(&stream, 0), "stream");
    return stream;
  }

  void release_all() {
    args_ = RunArgs();
    memory_ = DeviceBuffer();
    context_.reset();
    release_parked();
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

TEST_F(FakeExecutor, EveryFailingCallIsReportedAndLeaksNothing) {
  // Call number 1, 2, ... fails, until a round gets through without a failure.
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
      const auto executor = make_executor();
      executor->upload(plan({1, 64}, 8), {});
      executor->run(args_);
      executor->status({});
      // Destructors have nobody to tell and are left out.
      reached = fake_state().calls >= fail_at;
      fake_state().fail_at = 0;
    } catch (const Error& error) {
      failed = true;
      EXPECT_TRUE(error.code() == ErrorCode::kOutOfMemory || error.code() == ErrorCode::kBackend)
          << error.what();
      EXPECT_FALSE(error.field().empty());
    }
    EXPECT_TRUE(fake_state().context_stack.empty()) << "call " << fail_at;
    fake_state().fail_at = 0;
    release_all();
    EXPECT_EQ(fake_state().alive(), 0u) << "after call " << fail_at << " failed";
    if (!reached) {
      EXPECT_FALSE(failed);
      break;
    }
    EXPECT_TRUE(failed) << "call " << fail_at << " failed and nobody noticed";
    ++failures;
  }
  EXPECT_GT(failures, 20);
}

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
      const auto* header = reinterpret_cast<const device::PlanHeader*>(words);
      const auto* group =
          reinterpret_cast<const device::GroupHeader*>(words + header->group_offset[0]);
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

TEST_F(FakeExecutor, MeasuredRunForgetsTheTimesOfEarlierOnes) {
  options_.measure = true;
  make_context();
  make_operands();
  const auto executor = make_executor();
  // The fake fills memory with 0xFF: times of runs that never were.
  executor->upload(plan({1}, 4), {});
  executor->run(args_);
  EXPECT_TRUE(executor->worker_times().empty());
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
  EXPECT_EQ(fake_state().launches.size(), before) << "refused before anything was launched";
  EXPECT_EQ(refusal([](RunArgs&) {}), "accepted");
}

TEST_F(FakeExecutor, CallersContextIsCurrentAfterEveryCall) {
  make_context();
  make_operands();
  const Driver& driver = context_->driver();
  const auto other = DeviceContext::get(1);
  const ContextScope scope(*other);
  const std::vector<int> expected = {1};
  const auto executor = make_executor();
  EXPECT_EQ(fake_state().context_stack, expected);
  executor->upload(plan({1, 64}, 4), {});
  EXPECT_EQ(fake_state().context_stack, expected);
  executor->run(args_);
  EXPECT_EQ(fake_state().context_stack, expected);
  executor->status({});
  EXPECT_EQ(fake_state().context_stack, expected);
  static_cast<void>(driver);
}

TEST_F(FakeExecutor, BadPageIdsAreReportedOnce) {
  make_context();
  make_operands();
  void* workspace = nullptr;
  engine_options_.allocator.allocate = [&](std::int64_t bytes, Device) {
    workspace = std::aligned_alloc(256, static_cast<std::size_t>((bytes + 255) / 256 * 256));
    return workspace;
  };
  engine_options_.allocator.deallocate = [](void* memory, Device) { std::free(memory); };
  const auto executor = make_executor();
  const WorkspaceLayout layout(groups_, targets_, planner_->bounds(), false, false);
  auto* status = layout.ledger.carve<device::StatusBlock>(workspace, layout.status);
  EXPECT_NO_THROW(executor->status({}));
  *status = {device::kStatusBadPageId, 5, -7, 0};
  try {
    executor->status({});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), "page_ids");
    EXPECT_EQ(error.value(), "-7 in request 5");
  }
  EXPECT_NO_THROW(executor->status({}));
}

TEST_F(FakeExecutor, WorkspaceSizesThatWrapAreRefusedByName) {
  make_context();
  targets_ = {family_.target(groups_[0], {}, context_->facts())};
  PlanBounds bounds;
  bounds.state_rows = std::int64_t{1} << 57;  // times 64 elements
  try {
    WorkspaceLayout(groups_, targets_, bounds, false, false);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), "partial_o");
  }
}

TEST_F(FakeExecutor, AllocatorThatReturnsNothingIsNamed) {
  make_context();
  engine_options_.allocator.allocate = [](std::int64_t, Device) -> void* { return nullptr; };
  try {
    make_executor();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_EQ(error.field(), "workspace");
  }
}

}  // namespace
}  // namespace plait::cuda
