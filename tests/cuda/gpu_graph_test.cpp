// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// One captured graph serves changing batches, in each family: 32 layers of two layer groups are
// captured once, then replayed for random batches and compared bit for bit with eager runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>

#include "cuda/gpu_support.h"
#include "cuda/graph_lifetime.h"
#include "cuda/staging_ring.h"
#include "engine/attention_impl.h"
#include "plait/attention.h"
#include "plait/configurations.h"
#include "support/seed.h"

namespace plait::cuda {
namespace {

constexpr int kLayers = 32;
constexpr int kQoHeads = 8;
constexpr int kKvHeads = 2;
constexpr int kDim = 128;
constexpr int kPageSize = 16;
constexpr int kMaxRequests = 8;
constexpr int kMaxRows = 192;
constexpr int kMaxKv = 1024;
constexpr int kMaxPages = kMaxRequests * (kMaxKv / kPageSize);

/// Decode, prefill, padding (no rows) and empty requests (no keys) in one batch.
OwnedBatch random_batch(std::mt19937_64& random, bool largest) {
  const int requests = largest ? kMaxRequests : 1 + static_cast<int>(random() % kMaxRequests);
  std::vector<std::pair<int, int>> rows_and_keys;
  int room = kMaxRows - requests;
  for (int request = 0; request < requests; ++request) {
    const auto kind = random() % 8;
    int count = 1;
    if (kind < 2) count = static_cast<int>(random() % static_cast<unsigned>(room / 2 + 1));
    if (kind == 2) count = 0;
    count = std::min(count, 1 + room);
    room -= std::max(0, count - 1);
    int kv = kind == 3 ? 0 : 1 + static_cast<int>(random() % kMaxKv);
    if (largest) kv = kMaxKv;
    rows_and_keys.emplace_back(count, kv);
  }
  if (std::all_of(rows_and_keys.begin(), rows_and_keys.end(),
                  [](const auto& request) { return request.first == 0; })) {
    rows_and_keys.back().first = 1;
  }
  return paged_batch(rows_and_keys, kPageSize);
}

class GpuGraph : public GpuTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (GetParam() == std::string("hopper") && context_->facts().compute_capability != 90) {
      GTEST_SKIP() << context_->facts().name << " is not of compute capability 9.0";
    }
    const AttentionSpec full = paged_spec(kQoHeads, kKvHeads, kDim, kPageSize);
    AttentionSpec window = full;
    window.window_left = 100;
    groups_ = {full, window};
    capacity_.max_requests = kMaxRequests;
    capacity_.max_query_rows = kMaxRows;
    capacity_.max_kv_tokens = kMaxKv;

    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    const std::size_t row = kQoHeads * kDim;
    q_ = std::make_unique<DeviceArray<std::uint16_t>>(context_, kLayers * kMaxRows * row);
    k_ = std::make_unique<DeviceArray<std::uint16_t>>(context_,
                                                      kMaxPages * kPageSize * kKvHeads * kDim);
    v_ = std::make_unique<DeviceArray<std::uint16_t>>(context_, k_->host.size());
    for (auto* array : {q_.get(), k_.get(), v_.get()}) {
      for (std::uint16_t& word : array->host) word = bf16_of(normal(random));
      array->upload();
    }
    page_ids_ = std::make_unique<DeviceArray<std::int32_t>>(context_, kMaxPages);
    o_ = std::make_unique<DeviceArray<std::uint16_t>>(context_, kLayers * kMaxRows * row);
    lse_ = std::make_unique<DeviceArray<float>>(context_, kLayers * kMaxRows * kQoHeads);
  }

  /// Runs the layers; even ones belong to the first group.
  void run_layers(Attention& attention, const OwnedBatch& batch, CuStream stream) {
    for (int layer = 0; layer < layers_; ++layer) {
      const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(layer) * kMaxRows * kQoHeads;
      PagedRun run(groups_[static_cast<std::size_t>(layer % 2)], batch,
                   q_->device() + offset * kDim, k_->device(), v_->device(), kMaxPages,
                   page_ids_->device(), o_->device() + offset * kDim, stream);
      run.args().group = layer % 2;
      run.args().lse = Tensor::contiguous(lse_->device() + offset, DType::kF32,
                                          {batch.qo_indptr.back(), kQoHeads}, kTestDevice);
      attention.run(run.args());
    }
  }

  void poison_outputs(CuStream stream) {
    o_->poison(0xFF, stream);
    lse_->poison(0xFF, stream);
  }

  void shuffle_pages(std::mt19937_64& random, CuStream stream) {
    for (std::size_t page = 0; page < page_ids_->host.size(); ++page) {
      page_ids_->host[page] = static_cast<std::int32_t>(page);
    }
    std::shuffle(page_ids_->host.begin(), page_ids_->host.end(), random);
    page_ids_->upload(stream);
  }

  CuGraphExec capture(Attention& attention, const OwnedBatch& batch, CuStream stream) {
    const ContextScope scope(*context_);
    CuGraph graph = nullptr;
    CuGraphExec exec = nullptr;
    driver().check(driver().stream_begin_capture(stream, CuCaptureMode::kThreadLocal), "begin");
    run_layers(attention, batch, stream);
    driver().check(driver().stream_end_capture(stream, &graph), "end");
    driver().check(driver().graph_instantiate(&exec, graph, 0), "instantiate");
    driver().check(driver().graph_destroy(graph), "destroy");
    return exec;
  }

  void replay(CuGraphExec exec, CuStream stream) {
    const ContextScope scope(*context_);
    driver().check(driver().graph_launch(exec, stream), "cuGraphLaunch");
  }
  void destroy(CuGraphExec exec) {
    const ContextScope scope(*context_);
    driver().check(driver().graph_exec_destroy(exec), "cuGraphExecDestroy");
  }

  std::vector<AttentionSpec> groups_;
  Capacity capacity_;
  EngineOptions options_ = test_engine(GetParam());
  int layers_ = 2;  // one of each group
  std::unique_ptr<DeviceArray<std::uint16_t>> q_, k_, v_, o_;
  std::unique_ptr<DeviceArray<std::int32_t>> page_ids_;
  std::unique_ptr<DeviceArray<float>> lse_;
};

TEST_P(GpuGraph, ReplayEqualsEagerBitForBitFor200RandomBatches) {
  const test::Seed seed(20261129);
  SCOPED_TRACE(seed.repro());
  std::mt19937_64 random(seed.value());
  if (!emulated()) layers_ = kLayers;
  const int rounds = emulated() ? 8 : 200;
  const Engine engine(options_);
  Attention attention(engine, groups_, capacity_, {});
  const TestStream stream(context_);

  OwnedBatch first = random_batch(random, false);
  shuffle_pages(random, stream.get());
  attention.plan(first.get(), Stream{stream.get()});
  CuGraphExec exec = capture(attention, first, stream.get());

  std::vector<std::uint16_t> graph_o;
  std::vector<float> graph_lse;
  for (int round = 0; round < rounds; ++round) {
    OwnedBatch batch = random_batch(random, round == rounds / 2);
    shuffle_pages(random, stream.get());
    attention.plan(batch.get(), Stream{stream.get()});
    poison_outputs(stream.get());
    replay(exec, stream.get());
    o_->download(stream.get());
    lse_->download(stream.get());
    graph_o = o_->host;
    graph_lse = lse_->host;
    poison_outputs(stream.get());
    run_layers(attention, batch, stream.get());
    o_->download(stream.get());
    lse_->download(stream.get());
    ASSERT_EQ(std::memcmp(graph_o.data(), o_->host.data(), graph_o.size() * 2), 0)
        << "o differs in round " << round;
    ASSERT_EQ(std::memcmp(graph_lse.data(), lse_->host.data(), graph_lse.size() * 4), 0)
        << "lse differs in round " << round;
    // The rows of the batch were written and the rest was not.
    const std::size_t written = static_cast<std::size_t>(batch.qo_indptr.back()) * kQoHeads * kDim;
    ASSERT_TRUE(std::none_of(graph_o.begin(),
                             graph_o.begin() + static_cast<std::ptrdiff_t>(written),
                             [](std::uint16_t word) { return (word & 0x7F80) == 0x7F80; }))
        << "a NaN or an unwritten element in round " << round;
    ASSERT_TRUE(
        std::all_of(graph_o.begin() + static_cast<std::ptrdiff_t>(written),
                    graph_o.begin() + static_cast<std::ptrdiff_t>(kMaxRows) * kQoHeads * kDim,
                    [](std::uint16_t word) { return word == 0xFFFF; }))
        << "a row beyond the batch was written in round " << round;
  }
  attention.status(Stream{stream.get()});
  destroy(exec);
}

TEST_P(GpuGraph, PlansOnAnotherStreamJoinedByEventsAreTheSame) {
  std::mt19937_64 random(3);
  const Engine engine(options_);
  Attention attention(engine, groups_, capacity_, {});
  const TestStream planning(context_);
  const TestStream running(context_);
  CuEvent planned = nullptr;
  CuEvent ran = nullptr;
  {
    const ContextScope scope(*context_);
    driver().check(driver().event_create(&planned, kCuEventDisableTiming), "event");
    driver().check(driver().event_create(&ran, kCuEventDisableTiming), "event");
    driver().check(driver().event_record(ran, running.get()), "record");
  }
  shuffle_pages(random, running.get());
  const int rounds = emulated() ? 4 : 20;
  for (int round = 0; round < rounds; ++round) {
    OwnedBatch batch = random_batch(random, false);
    poison_outputs(running.get());
    {
      const ContextScope scope(*context_);
      driver().check(driver().stream_wait_event(planning.get(), ran, 0), "wait");
    }
    attention.plan(batch.get(), Stream{planning.get()});
    {
      const ContextScope scope(*context_);
      driver().check(driver().event_record(planned, planning.get()), "record");
      driver().check(driver().stream_wait_event(running.get(), planned, 0), "wait");
    }
    run_layers(attention, batch, running.get());
    {
      const ContextScope scope(*context_);
      driver().check(driver().event_record(ran, running.get()), "record");
    }
    o_->download(running.get());
    const std::vector<std::uint16_t> joined = o_->host;
    poison_outputs(running.get());
    attention.plan(batch.get(), Stream{running.get()});
    run_layers(attention, batch, running.get());
    o_->download(running.get());
    ASSERT_EQ(joined, o_->host) << "round " << round;
    const ContextScope scope(*context_);
    driver().check(driver().event_record(ran, running.get()), "record");
  }
  running.synchronize();
  driver().event_destroy(planned);
  driver().event_destroy(ran);
}

TEST_P(GpuGraph, GraphOutlivesItsAttention) {
  std::mt19937_64 random(5);
  const TestStream stream(context_);
  OwnedBatch batch = random_batch(random, true);
  shuffle_pages(random, stream.get());
  CuGraphExec exec = nullptr;
  std::vector<std::uint16_t> expected;
  {
    const Engine engine(options_);
    Attention attention(engine, groups_, capacity_, {});
    attention.plan(batch.get(), Stream{stream.get()});
    poison_outputs(stream.get());
    run_layers(attention, batch, stream.get());
    o_->download(stream.get());
    expected = o_->host;
    exec = capture(attention, batch, stream.get());
  }
  release_parked();
  poison_outputs(stream.get());
  // Memory that was freed would be handed out again and overwritten here.
  DeviceArray<std::uint8_t> other(context_, 64 << 20);
  other.poison(0xEE, stream.get());
  replay(exec, stream.get());
  o_->download(stream.get());
  EXPECT_EQ(o_->host, expected);
  destroy(exec);
}

TEST_P(GpuGraph, GrowingNamesTheGraphsThatItInvalidates) {
  std::mt19937_64 random(19);
  const TestStream stream(context_);
  const Engine engine(options_);
  ConfigurationSet set(engine, groups_, {});
  const std::int32_t index = set.add(capacity_);
  OwnedBatch batch = random_batch(random, true);
  shuffle_pages(random, stream.get());
  EXPECT_EQ(set.select(batch.get()).index, index);
  set.at(index).plan(batch.get(), Stream{stream.get()});
  CuGraphExec exec = capture(set.at(index), batch, stream.get());
  poison_outputs(stream.get());
  replay(exec, stream.get());
  o_->download(stream.get());
  const std::vector<std::uint16_t> expected = o_->host;

  Capacity larger = capacity_;
  larger.max_kv_tokens *= 2;
  EXPECT_EQ(set.grow(index, larger).invalidated_graphs.size(), 1u);
  // The old graph still runs in its own memory; the new object knows nothing of it.
  poison_outputs(stream.get());
  replay(exec, stream.get());
  o_->download(stream.get());
  EXPECT_EQ(o_->host, expected);
  set.at(index).plan(batch.get(), Stream{stream.get()});
  poison_outputs(stream.get());
  run_layers(set.at(index), batch, stream.get());
  EXPECT_TRUE(set.grow(index, larger).invalidated_graphs.empty());
  destroy(exec);
}

TEST_P(GpuGraph, WorkspaceContentDoesNotMatter) {
  std::mt19937_64 random(7);
  const TestStream stream(context_);
  OwnedBatch batch = random_batch(random, true);
  shuffle_pages(random, stream.get());
  std::vector<std::uint16_t> expected;
  for (const int poison : {0x00, 0xFF, 0x7F, 0xA5}) {
    std::vector<std::pair<CuDevicePtr, std::int64_t>> given;
    EngineOptions options = options_;
    options.allocator.allocate = [&](std::int64_t bytes, Device) -> void* {
      const ContextScope scope(*context_);
      CuDevicePtr address = 0;
      if (driver().mem_alloc(&address, static_cast<std::size_t>(bytes)) != kCuSuccess)
        return nullptr;
      driver().memset_d8(address, static_cast<unsigned char>(poison),
                         static_cast<std::size_t>(bytes), nullptr);
      driver().context_synchronize();
      return reinterpret_cast<void*>(address);
    };
    int freed = 0;
    options.allocator.deallocate = [&](void* memory, Device) {
      const ContextScope scope(*context_);
      driver().mem_free(reinterpret_cast<CuDevicePtr>(memory));
      ++freed;
    };
    {
      const Engine engine(options);
      Attention attention(engine, groups_, capacity_, {});
      attention.plan(batch.get(), Stream{stream.get()});
      poison_outputs(stream.get());
      run_layers(attention, batch, stream.get());
      o_->download(stream.get());
    }
    EXPECT_EQ(freed, 1);
    if (expected.empty()) expected = o_->host;
    ASSERT_EQ(o_->host, expected) << "workspace of bytes " << poison;
  }
}

TEST_P(GpuGraph, BadPageIdPoisonsItsRequestAndIsReported) {
  std::mt19937_64 random(9);
  const TestStream stream(context_);
  OwnedBatch batch = random_batch(random, true);
  const Engine engine(options_);
  Attention attention(engine, groups_, capacity_, {});
  shuffle_pages(random, stream.get());
  // The first page of request 3: every row of that request sees it in the layers without window.
  const auto bad = static_cast<std::size_t>(batch.views[0].page_indptr[3]);
  page_ids_->host[bad] = kMaxPages;
  page_ids_->upload(stream.get());
  attention.plan(batch.get(), Stream{stream.get()});
  poison_outputs(stream.get());
  run_layers(attention, batch, stream.get());
  o_->download(stream.get());
  for (int request = 0; request < kMaxRequests; ++request) {
    const std::int32_t begin = batch.qo_indptr[static_cast<std::size_t>(request)];
    const std::int32_t end = batch.qo_indptr[static_cast<std::size_t>(request) + 1];
    for (std::int32_t row = begin; row < end; ++row) {
      const std::uint16_t word = o_->host[static_cast<std::size_t>(row) * kQoHeads * kDim];
      const bool nan = (word & 0x7F80) == 0x7F80 && (word & 0x7F) != 0;
      EXPECT_EQ(nan, request == 3) << "request " << request << " row " << row;
    }
  }
  try {
    attention.status(Stream{stream.get()});
    FAIL() << "the bad page id was not reported";
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), "page_ids");
    EXPECT_NE(error.value().find(std::to_string(kMaxPages) + " in request 3"), std::string::npos)
        << error.value();
  }
  EXPECT_NO_THROW(attention.status(Stream{stream.get()}));
}

TEST_P(GpuGraph, PlanAndStatusInsideACaptureAreRefused) {
  std::mt19937_64 random(11);
  const TestStream stream(context_);
  OwnedBatch batch = random_batch(random, false);
  const Engine engine(options_);
  Attention attention(engine, groups_, capacity_, {});
  const ContextScope scope(*context_);
  driver().check(driver().stream_begin_capture(stream.get(), CuCaptureMode::kThreadLocal), "begin");
  // Also with all of the staging ring in use, of which the driver is asked before.
  const TestStream other(context_);
  for (int round = 0; round <= 2 * StagingRing::kSlots; ++round) {
    EXPECT_THROW(attention.plan(batch.get(), Stream{stream.get()}), Error);
    EXPECT_NO_THROW(attention.plan(batch.get(), Stream{other.get()}));
  }
  EXPECT_THROW(attention.status(Stream{stream.get()}), Error);
  CuGraph graph = nullptr;
  driver().check(driver().stream_end_capture(stream.get(), &graph), "the capture must survive");
  driver().graph_destroy(graph);
}

TEST_P(GpuGraph, PlanOverCapacityLeavesTheGraphUsable) {
  std::mt19937_64 random(13);
  const TestStream stream(context_);
  OwnedBatch batch = random_batch(random, true);
  Capacity small = capacity_;
  const Engine engine(options_);
  Attention attention(engine, groups_, small, {});
  shuffle_pages(random, stream.get());
  attention.plan(batch.get(), Stream{stream.get()});
  CuGraphExec exec = capture(attention, batch, stream.get());
  poison_outputs(stream.get());
  replay(exec, stream.get());
  o_->download(stream.get());
  const std::vector<std::uint16_t> expected = o_->host;

  OwnedBatch over = paged_batch(std::vector(kMaxRequests + 1, std::pair(1, 1)), kPageSize);
  try {
    attention.plan(over.get(), Stream{stream.get()});
    FAIL() << "the batch is over capacity";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOverCapacity);
  }
  poison_outputs(stream.get());
  replay(exec, stream.get());
  o_->download(stream.get());
  const auto rows = static_cast<std::ptrdiff_t>(batch.qo_indptr.back()) * kQoHeads * kDim;
  EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + rows, o_->host.begin()));
  destroy(exec);
}

/// Median microseconds of what `call` does on the host.
template <typename Call>
double median_microseconds(Call call, const std::function<void()>& between) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (int round = 0; round < 41; ++round) {
    const auto begin = Clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    between();
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

TEST_P(GpuGraph, HostCosts) {
  if (emulated()) GTEST_SKIP() << "an emulator has no costs";
  layers_ = kLayers;
  std::mt19937_64 random(15);
  const TestStream stream(context_);
  const Engine engine(options_);
  Attention attention(engine, groups_, capacity_, {});
  shuffle_pages(random, stream.get());
  const auto drain = [&] { stream.synchronize(); };
  for (const bool mixed : {false, true}) {
    // Decode alone is one tile class.
    OwnedBatch batch =
        mixed ? random_batch(random, true)
              : paged_batch(std::vector(kMaxRequests, std::pair(1, kMaxKv)), kPageSize);
    attention.plan(batch.get(), Stream{stream.get()});
    run_layers(attention, batch, stream.get());
    drain();
    const double run =
        median_microseconds([&] { run_layers(attention, batch, stream.get()); }, drain) / kLayers;
    const double plan =
        median_microseconds([&] { attention.plan(batch.get(), Stream{stream.get()}); }, drain);
    std::printf(
        "host cost, %s: run %.2f us, plan and upload of 2 groups, 8 requests %.2f us (upload "
        "%.2f)\n",
        mixed ? "mixed" : "decode", run, plan,
        static_cast<double>(attention.impl().upload_ns()) * 1e-3);
    EXPECT_LT(run, 100.0);
  }
}

TEST_P(GpuGraph, HostCostOfPlanning256Requests) {
  const TestStream stream(context_);
  const Engine engine(options_);
  Capacity capacity;
  capacity.max_requests = 256;
  capacity.max_query_rows = 256;
  capacity.max_kv_tokens = 8192;
  Attention attention(engine, {groups_[0]}, capacity, {});
  std::mt19937_64 random(17);
  std::vector<std::pair<int, int>> requests;
  for (int request = 0; request < 256; ++request) {
    requests.emplace_back(1, 1 + static_cast<int>(random() % 8192));
  }
  OwnedBatch batch = paged_batch(requests, kPageSize);
  const double plan = median_microseconds(
      [&] { attention.plan(batch.get(), Stream{stream.get()}); }, [&] { stream.synchronize(); });
  std::printf(
      "host cost: plan and upload of 256 decode requests %.2f us (upload %.2f), %lld bytes\n", plan,
      static_cast<double>(attention.impl().upload_ns()) * 1e-3,
      static_cast<long long>(attention.summary(0).metadata_bytes));
  EXPECT_LT(plan, 1000.0);
}

INSTANTIATE_TEST_SUITE_P(, GpuGraph, testing::Values("mma", "hopper"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace plait::cuda
