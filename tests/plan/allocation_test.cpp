// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// plan() allocates nothing, ever: all memory comes with the planner. Counts every operator new of
// this executable.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "plan/corpus.h"
#include "plan/fit_capacity.h"
#include "plan/reference_target.h"

namespace {
std::atomic<long> allocations{0};
}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
// Sanitizers bring one of these whose memory is not free's.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
void* operator new[](std::size_t size) { return operator new(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace plait::test {
namespace {

TEST(PlanAllocation, NoneWhilePlanning) {
  const long before_any = allocations;
  for (std::string_view name : corpus_names()) {
    CorpusCase c = corpus_case(name);
    const PlanTarget target = reference_target(c.spec);
    for (PolicyKind kind : {PolicyKind::kThroughput, PolicyKind::kBatchInvariant,
                            PolicyKind::kFixedChunk, PolicyKind::kUnsplit}) {
      Policy policy;
      policy.kind = kind;
      if (kind == PolicyKind::kFixedChunk) policy.kv_chunk = 8192;
      const Batch batch = c.batch.get();
      Planner planner(std::span(&c.spec, 1),
                      fit_capacity(std::span(&c.spec, 1), std::span(&batch, 1), policy), policy,
                      std::span(&target, 1));
      const long before = allocations;
      planner.plan(std::span(&batch, 1));
      planner.plan(std::span(&batch, 1));
      planner.plan(std::span(&batch, 1));
      EXPECT_EQ(allocations - before, 0) << name;
    }
  }
  EXPECT_GT(allocations, before_any);  // the counter works
}

}  // namespace
}  // namespace plait::test
