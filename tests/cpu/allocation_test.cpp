// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A run allocates nothing, on any path: counted by replacing operator new in this executable.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "case.h"

// Not inlined, or gcc takes one half of a pair for its own and warns that they do not match.
[[gnu::noinline]] void* operator new(std::size_t size) {
  plait::test::allocation_count.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace plait::test {
namespace {

TEST(CpuAllocation, RunAllocatesNothing) {
  Case c;
  c.spec.num_qo_heads = 4;
  c.spec.num_kv_heads = 2;
  c.spec.head_dim_qk = c.spec.head_dim_vo = 40;
  c.requests = {{1, 300}, {20, 100}, {2, 0}};
  c.spec.sink = true;
  c.make(1);
  const long made = allocation_count.load();
  EXPECT_GT(made, 0) << "the counter does not count";
  for (const HandOptions& options : {HandOptions{}, HandOptions{.q_tile = 8, .kv_chunk = 48},
                                     HandOptions{.segment_tokens = 128}}) {
    c.run(options);
    EXPECT_EQ(c.allocations, 0);
  }
  c.spec.rope.kind = RopeKind::kHalf;
  c.spec.logits_soft_cap = 5.0;
  c.run({});
  EXPECT_EQ(c.allocations, 0);
  // Times of more workers than there are threads.
  c.measure = true;
  c.run({.num_workers = 100});
  EXPECT_EQ(c.allocations, 0);
}

/// Allocations of one call over `rows` rows, enough of them for every thread.
long merge_allocations(Operations& operations, std::int64_t rows) {
  std::vector<float> o(static_cast<std::size_t>(rows) * 64), lse(static_cast<std::size_t>(rows));
  const Tensor states = Tensor::contiguous(o.data(), DType::kF32, {rows, 1, 64});
  const Tensor lses = Tensor::contiguous(lse.data(), DType::kF32, {rows, 1});
  const long before = allocation_count.load();
  operations.merge_state(states, lses, states, lses, states, lses, {}, {});
  return allocation_count.load() - before;
}

TEST(CpuAllocation, OperationsAllocateOnTheCallersThread) {
  EngineOptions options;
  options.num_threads = 4;
  const auto operations = make_cpu_operations(options);
  EXPECT_EQ(merge_allocations(*operations, 4096), 1);
  options.num_threads = 1;
  EXPECT_EQ(merge_allocations(*make_cpu_operations(options), 4096), 1);
}

}  // namespace
}  // namespace plait::test
