// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Runs that come back are launched as graphs: the same bits as launches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cuda/gpu_support.h"
#include "engine/attention_impl.h"
#include "plait/attention.h"
#include "plait/error.h"
#include "support/seed.h"

namespace plait::cuda {
namespace {

constexpr int kLayers = 3;
constexpr int kQoHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kDim = 64;
constexpr int kPageSize = 16;
constexpr int kMaxRequests = 4;
constexpr int kMaxRows = 32;
constexpr int kMaxKv = 256;
constexpr int kPages = kMaxRequests * (kMaxKv / kPageSize);
constexpr std::ptrdiff_t kRowWords = std::ptrdiff_t{kQoHeads} * kDim;

class GpuRunGraphs : public GpuTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (std::string(GetParam()) == "hopper" && context_->facts().compute_capability != 90) {
      GTEST_SKIP() << context_->facts().name << " is not of compute capability 9.0";
    }
    capacity_.max_requests = kMaxRequests;
    capacity_.max_query_rows = kMaxRows;
    capacity_.max_kv_tokens = kMaxKv;
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    // Rows beyond what a layer has are for operands that move.
    q_ = std::make_unique<DeviceArray<std::uint16_t>>(context_, (kMaxRows + 80) * kRowWords);
    k_ = std::make_unique<DeviceArray<std::uint16_t>>(
        context_, std::size_t{kPages} * kPageSize * kKvHeads * kDim);
    v_ = std::make_unique<DeviceArray<std::uint16_t>>(context_, k_->host.size());
    for (auto* array : {q_.get(), k_.get(), v_.get()}) {
      for (std::uint16_t& word : array->host) word = bf16_of(normal(random));
      array->upload();
    }
    page_ids_ = std::make_unique<DeviceArray<std::int32_t>>(context_, kPages);
    o_ = std::make_unique<DeviceArray<std::uint16_t>>(context_, kLayers * kMaxRows * kRowWords);
  }

  Attention attention(std::optional<std::int32_t> run_graphs) const {
    EngineOptions options = test_engine(GetParam());
    options.run_graphs = run_graphs;
    AttentionSpec window = spec_;
    window.window_left = 40;
    return {Engine(options), {spec_, window}, capacity_, {}};
  }

  /// Decodes, and a prefill or none of them: sets of tile classes come and go.
  static OwnedBatch random_batch(std::mt19937_64& random) {
    std::vector<std::pair<int, int>> requests(1 + random() % kMaxRequests);
    for (auto& [rows, keys] : requests) {
      rows = 1;
      keys = 1 + static_cast<int>(random() % kMaxKv);
    }
    if (random() % 2 == 0) requests.back().first = 20;
    return paged_batch(requests, kPageSize);
  }

  void shuffle_pages(std::mt19937_64& random, CuStream stream) {
    for (std::size_t page = 0; page < page_ids_->host.size(); ++page) {
      page_ids_->host[page] = static_cast<std::int32_t>(page);
    }
    std::shuffle(page_ids_->host.begin(), page_ids_->host.end(), random);
    page_ids_->upload(stream);
  }

  /// Layers alternate between the groups. `moved`: rows by which the queries lie elsewhere.
  void run_layers(Attention& attention, const OwnedBatch& batch, CuStream stream, int moved = 0) {
    for (int layer = 0; layer < kLayers; ++layer) {
      PagedRun run(spec_, batch, q_->device() + (layer + moved) * kRowWords, k_->device(),
                   v_->device(), kPages, page_ids_->device(),
                   o_->device() + layer * kMaxRows * kRowWords, stream);
      run.args().group = layer % 2;
      attention.run(run.args());
    }
  }

  std::vector<std::uint16_t> outputs(Attention& attention, const OwnedBatch& batch, CuStream stream,
                                     int moved = 0) {
    o_->poison(0xFF, stream);
    run_layers(attention, batch, stream, moved);
    o_->download(stream);
    return o_->host;
  }

  static std::int64_t graphs_of(const Attention& attention) {
    return attention.impl().executor().num_run_graphs();
  }

  const AttentionSpec spec_ = paged_spec(kQoHeads, kKvHeads, kDim, kPageSize);
  Capacity capacity_;
  std::unique_ptr<DeviceArray<std::uint16_t>> q_, k_, v_, o_;
  std::unique_ptr<DeviceArray<std::int32_t>> page_ids_;
};

TEST_P(GpuRunGraphs, EqualLaunchesBitForBitForRandomBatches) {
  const test::Seed seed(20261130);
  SCOPED_TRACE(seed.repro());
  std::mt19937_64 random(seed.value());
  Attention graphs = attention({});
  Attention launches = attention(0);
  const TestStream stream(context_);
  for (int round = 0; round < 16; ++round) {
    OwnedBatch batch = random_batch(random);
    shuffle_pages(random, stream.get());
    graphs.plan(batch.get(), Stream{stream.get()});
    launches.plan(batch.get(), Stream{stream.get()});
    const int moved = round % 6 == 5 ? round : 0;
    // The legacy stream too: it waits for nothing of a non-blocking one, and all is done here.
    const std::vector<std::uint16_t> expected = outputs(launches, batch, stream.get(), moved);
    stream.synchronize();
    CuStream other = round % 4 == 3 ? nullptr : stream.get();
    ASSERT_EQ(outputs(graphs, batch, other, moved), expected) << "round " << round;
    ASSERT_TRUE(std::none_of(expected.begin(), expected.begin() + kRowWords,
                             [](std::uint16_t word) { return (word & 0x7F80) == 0x7F80; }))
        << "a NaN or an unwritten element in round " << round;
  }
  graphs.status(Stream{stream.get()});
  EXPECT_GE(graphs_of(graphs), 2 * kLayers) << "of decodes, and of those with a prefill";
  EXPECT_EQ(graphs_of(launches), 0);
}

TEST_P(GpuRunGraphs, OperandsThatMoveEveryStepLeaveNone) {
  std::mt19937_64 random(3);
  Attention moving = attention({});
  OwnedBatch batch = paged_batch({{1, 40}, {1, 3}}, kPageSize);
  shuffle_pages(random, nullptr);
  for (int round = 0; round < 20; ++round) {
    moving.plan(batch.get());
    run_layers(moving, batch, nullptr, kLayers * round);
  }
  synchronize();
  EXPECT_EQ(graphs_of(moving), 0);
}

TEST_P(GpuRunGraphs, CapturesOfOthersAreLeftAlone) {
  std::mt19937_64 random(5);
  Attention graphs = attention({});
  Attention launches = attention(0);
  const TestStream stream(context_);
  const TestStream captured(context_);
  OwnedBatch batch = paged_batch({{1, 100}, {20, 200}}, kPageSize);
  shuffle_pages(random, stream.get());
  for (int round = 0; round < 2; ++round) {
    graphs.plan(batch.get(), Stream{stream.get()});
    run_layers(graphs, batch, stream.get());
  }
  launches.plan(batch.get(), Stream{stream.get()});
  const std::vector<std::uint16_t> expected = outputs(launches, batch, stream.get());
  CuGraph graph = nullptr;
  CuGraphExec exec = nullptr;
  {
    // In this mode a capture forbids most of the driver to every thread; plans still make graphs.
    const ContextScope scope(*context_);
    driver().check(driver().stream_begin_capture(captured.get(), CuCaptureMode::kGlobal), "begin");
    run_layers(graphs, batch, captured.get());
    graphs.plan(batch.get(), Stream{stream.get()});
    EXPECT_EQ(graphs_of(graphs), kLayers);
    run_layers(graphs, batch, stream.get());
    driver().check(driver().stream_end_capture(captured.get(), &graph), "end");
    driver().check(driver().graph_instantiate(&exec, graph, 0), "instantiate");
  }
  EXPECT_EQ(outputs(graphs, batch, stream.get()), expected);
  o_->poison(0xFF, stream.get());
  stream.synchronize();
  {
    const ContextScope scope(*context_);
    driver().check(driver().graph_launch(exec, captured.get()), "cuGraphLaunch");
    driver().graph_exec_destroy(exec);
    driver().graph_destroy(graph);
  }
  o_->download(captured.get());
  EXPECT_EQ(o_->host, expected);
}

TEST_P(GpuRunGraphs, AttentionsComeAndGoBesideCaptures) {
  std::mt19937_64 random(11);
  const TestStream stream(context_);
  const TestStream captured(context_);
  OwnedBatch batch = paged_batch({{1, 100}, {20, 200}}, kPageSize);
  shuffle_pages(random, stream.get());
  Attention launches = attention(0);
  launches.plan(batch.get(), Stream{stream.get()});
  const std::vector<std::uint16_t> expected = outputs(launches, batch, stream.get());
  auto ending = std::make_unique<Attention>(attention({}));
  ending->plan(batch.get(), Stream{stream.get()});
  stream.synchronize();
  CuGraph graph = nullptr;
  CuGraphExec exec = nullptr;
  const ContextScope scope(*context_);
  // Nothing of this is part of the capture, whose mode forbids it to every thread.
  driver().check(driver().stream_begin_capture(captured.get(), CuCaptureMode::kGlobal), "begin");
  run_layers(*ending, batch, captured.get());
  ending.reset();
  {
    Attention passing = attention({});
    for (int round = 0; round < 3; ++round) {
      passing.plan(batch.get(), Stream{stream.get()});
      run_layers(passing, batch, stream.get());
    }
    passing.status(Stream{stream.get()});
    EXPECT_EQ(graphs_of(passing), kLayers);
  }
  ASSERT_EQ(driver().stream_end_capture(captured.get(), &graph), kCuSuccess);
  driver().check(driver().graph_instantiate(&exec, graph, 0), "instantiate");
  o_->poison(0xFF, stream.get());
  stream.synchronize();
  driver().check(driver().graph_launch(exec, captured.get()), "cuGraphLaunch");
  o_->download(captured.get());
  EXPECT_EQ(o_->host, expected);
  driver().graph_exec_destroy(exec);
  driver().graph_destroy(graph);
}

TEST_P(GpuRunGraphs, WhatWouldEndACaptureOfAStreamThatWaitsForTheLegacyOneIsRefused) {
  std::mt19937_64 random(13);
  const TestStream stream(context_);
  OwnedBatch batch = paged_batch({{1, 100}}, kPageSize);
  shuffle_pages(random, stream.get());
  Attention graphs = attention({});
  graphs.plan(batch.get(), Stream{stream.get()});
  stream.synchronize();
  const ContextScope scope(*context_);
  CuStream captured = nullptr;
  driver().check(driver().stream_create(&captured, 0), "stream");
  driver().check(driver().stream_begin_capture(captured, CuCaptureMode::kGlobal), "begin");
  try {
    attention({});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_EQ(error.field(), "attention");
  }
  EXPECT_THROW(graphs.plan(batch.get()), Error);
  EXPECT_THROW(run_layers(graphs, batch, nullptr), Error);
  EXPECT_THROW(graphs.status(), Error);
  EXPECT_NO_THROW(graphs.plan(batch.get(), Stream{stream.get()}));
  EXPECT_NO_THROW(run_layers(graphs, batch, stream.get()));
  CuGraph graph = nullptr;
  EXPECT_EQ(driver().stream_end_capture(captured, &graph), kCuSuccess);
  driver().graph_destroy(graph);
  driver().stream_destroy(captured);
}

TEST_P(GpuRunGraphs, MayEndWhileTheyRun) {
  std::mt19937_64 random(7);
  const TestStream stream(context_);
  OwnedBatch batch = paged_batch({{24, 256}, {1, 256}}, kPageSize);
  shuffle_pages(random, stream.get());
  Attention launches = attention(0);
  launches.plan(batch.get(), Stream{stream.get()});
  const std::vector<std::uint16_t> expected = outputs(launches, batch, stream.get());
  o_->poison(0xFF, stream.get());
  {
    Attention graphs = attention({});
    for (int round = 0; round < 3; ++round) {
      graphs.plan(batch.get(), Stream{stream.get()});
      run_layers(graphs, batch, stream.get());
    }
    EXPECT_EQ(graphs_of(graphs), kLayers);
  }
  o_->download(stream.get());
  EXPECT_EQ(o_->host, expected);
}

INSTANTIATE_TEST_SUITE_P(, GpuRunGraphs, testing::Values("mma", "hopper"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace plait::cuda
