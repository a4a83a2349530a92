// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Once an Attention is made, plan() and run() of the public surface allocate nothing, whatever the
// step: counted by replacing operator new in this executable.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>
#include <vector>

#include "core/owned_batch.h"
#include "plait/attention.h"

namespace {
std::atomic<long> allocations{0};
}  // namespace

// Not inlined, or gcc takes one half of a pair for its own and warns that they do not match.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace plait {
namespace {

constexpr std::int64_t kPages = 512;
constexpr std::int64_t kRows = 64;
constexpr std::int32_t kPage = 4;

/// A step of a server: batches of one or two views, with the page ids and tensors of a run.
struct StepOf {
  OwnedBatch batch;
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<Tensor> id_tensors;

  /// `prefix` keys that all requests share, then each its own.
  StepOf(std::vector<std::int32_t> rows, std::vector<std::int64_t> keys, std::int64_t prefix) {
    for (const std::int32_t count : rows) {
      batch.qo_indptr.push_back(batch.qo_indptr.back() + count);
    }
    if (prefix > 0) {
      OwnedView& shared = batch.views.emplace_back();
      shared.row_indptr = {0, batch.qo_indptr.back()};
      shared.add_list(prefix, kPage);
    }
    OwnedView& own = batch.views.emplace_back();
    own.row_indptr = batch.qo_indptr;
    for (const std::int64_t count : keys) own.add_list(count, kPage);
    std::int32_t next = 0;
    for (const OwnedView& view : batch.views) {
      std::vector<std::int32_t>& list = ids.emplace_back(view.page_indptr.back());
      std::iota(list.begin(), list.end(), next);
      next += view.page_indptr.back();
    }
    for (const auto& list : ids) {
      id_tensors.push_back(Tensor::contiguous(list.data(), DType::kI32, {std::ssize(list)}));
    }
  }
};

TEST(EngineAllocation, NoneOnceAnAttentionIsMade) {
  AttentionSpec full;
  full.num_qo_heads = 4;
  full.num_kv_heads = 2;
  full.head_dim_qk = full.head_dim_vo = 32;
  full.q_dtype = full.kv_dtype = full.o_dtype = DType::kF32;
  full.page_size = kPage;
  full.rope.kind = RopeKind::kHalf;
  AttentionSpec window = full;
  window.window_left = 40;
  Capacity capacity;
  capacity.max_requests = 8;
  capacity.max_query_rows = kRows;
  capacity.max_kv_tokens = kPages * kPage;
  capacity.max_views = 2;
  capacity.min_kv_chunk = 32;
  std::vector<float> cache(static_cast<std::size_t>(kPages * kPage * 2 * 32), 0.25F);
  std::vector<float> rows(static_cast<std::size_t>(kRows * 4 * 32), 0.5F);
  std::vector<float> out(rows.size());
  std::vector<StepOf> steps;
  steps.emplace_back(std::vector<std::int32_t>{1, 1, 1}, std::vector<std::int64_t>{30, 700, 3}, 0);
  steps.emplace_back(std::vector<std::int32_t>{40, 1, 7}, std::vector<std::int64_t>{90, 1, 200}, 0);
  steps.emplace_back(std::vector<std::int32_t>{1, 0, 9}, std::vector<std::int64_t>{5, 0, 11}, 800);
  steps.emplace_back(std::vector<std::int32_t>{}, std::vector<std::int64_t>{}, 0);
  for (const PolicyKind kind : {PolicyKind::kThroughput, PolicyKind::kBatchInvariant,
                                PolicyKind::kFixedChunk, PolicyKind::kUnsplit}) {
    Policy policy;
    policy.kind = kind;
    policy.num_workers = 5;
    if (kind == PolicyKind::kFixedChunk) policy.kv_chunk = 32;
    const Engine engine;
    Attention attention(engine, {full, window}, capacity, {policy, false, false});
    for (StepOf& step : steps) {
      const Batch& batch = step.batch.get();
      const std::int64_t count = step.batch.qo_indptr.back();
      const Tensor q = Tensor::contiguous(rows.data(), DType::kF32, {count, 4, 32});
      const Tensor kv = Tensor::contiguous(cache.data(), DType::kF32, {kPages, kPage, 2, 32});
      RunArgs args;
      args.q = q;
      args.k = args.v = kv;
      args.o = Tensor::contiguous(out.data(), DType::kF32, {count, 4, 32});
      args.page_ids = step.id_tensors;
      const long before = allocations.load();
      attention.plan(batch);
      for (args.group = 0; args.group < 2; ++args.group) attention.run(args);
      EXPECT_EQ(allocations.load() - before, 0)
          << "policy " << static_cast<int>(kind) << ", step " << &step - steps.data();
    }
  }
  EXPECT_GT(allocations.load(), 0) << "the counter does not count";
}

}  // namespace
}  // namespace plait
