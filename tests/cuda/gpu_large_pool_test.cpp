// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Field case 9 at full size: a K/V pool of 40 GB, with pages on both sides of every power of two
// that a 32-bit offset in elements or bytes could wrap at. Must give the bits that a small pool
// with the same pages gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda/gpu_support.h"
#include "plait/attention.h"

namespace plait::cuda {
namespace {

constexpr int kKvHeads = 8;
constexpr int kHeads = 32;
constexpr int kDim = 128;
constexpr std::int64_t kTokenWords = std::int64_t{kKvHeads} * kDim;
constexpr int kListed = 48;  // pages that the batch reads

/// By tokens of a page: whole boxes of family hopper, or rows that it gathers.
class GpuLargePool : public GpuTest, public testing::WithParamInterface<int> {
 protected:
  std::int64_t page_size() const { return GetParam(); }
  std::int64_t page_words() const { return page_size() * kTokenWords; }
  std::int64_t page_bytes() const { return 2 * page_words(); }

  struct Pools {
    DeviceBuffer k, v;
  };

  /// Pools of `pages` pages, NaN all over but for the listed ones.
  Pools pools(std::int64_t pages, const std::vector<std::int32_t>& ids) {
    Pools out{{context_, pages * page_bytes(), "pool of K"}, {context_, pages * page_bytes(), "V"}};
    const ContextScope scope(*context_);
    std::uint64_t seed = 1;
    for (const DeviceBuffer* pool : {&out.k, &out.v}) {
      driver().check(driver().memset_d8(pool->address(), 0xFF,
                                        static_cast<std::size_t>(pool->bytes()), nullptr),
                     "memset");
      std::mt19937_64 random(seed++);
      std::normal_distribution<float> normal;
      std::vector<std::uint16_t> page(static_cast<std::size_t>(page_words()));
      for (const std::int64_t id : ids) {
        for (auto& word : page) word = bf16_of(normal(random));
        driver().check(driver().memcpy_host_to_device(
                           pool->address() + static_cast<CuDevicePtr>(id * page_bytes()),
                           page.data(), static_cast<std::size_t>(page_bytes()), nullptr),
                       "page");
        driver().check(driver().stream_synchronize(nullptr), "page");
      }
    }
    return out;
  }

  /// A prefill of 70 rows on 40 pages and two decodes, as words of bf16.
  std::vector<std::uint16_t> run(const std::string& family, const Pools& pools, std::int64_t pages,
                                 const std::vector<std::int32_t>& ids) {
    const AttentionSpec spec = paged_spec(kHeads, kKvHeads, kDim, GetParam());
    Capacity capacity;
    capacity.max_requests = 3;
    capacity.max_query_rows = 72;
    capacity.max_kv_tokens = kListed * GetParam();
    Attention attention(Engine(test_engine(family)), {spec}, capacity, Attention::Options{});
    const int page = GetParam();
    OwnedBatch batch = paged_batch(
        {{70, (kListed - 9) * page + std::min(page, 5)}, {1, 5 * page}, {1, 2 * page + 1}}, page);
    attention.plan(batch.get());

    DeviceArray<std::uint16_t> q(context_, 72 * kHeads * kDim);
    DeviceArray<std::uint16_t> o(context_, 72 * kHeads * kDim);
    DeviceArray<std::int32_t> list(context_, ids.size());
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    for (auto& word : q.host) word = bf16_of(normal(random));
    list.host = ids;
    q.upload();
    list.upload();
    o.poison(0xFF);
    PagedRun run(spec, batch, q.device(), reinterpret_cast<void*>(pools.k.address()),
                 reinterpret_cast<void*>(pools.v.address()), pages, list.device(), o.device());
    attention.run(run.args());
    synchronize();
    attention.status();
    o.download();
    return o.host;
  }

  /// Compares a pool of `pages` pages with the smallest that holds what is read.
  void check(std::int64_t pages) {
    std::vector<std::int32_t> compact(kListed);
    std::iota(compact.begin(), compact.end(), 0);
    // The last pages, and those around powers of two; then whatever is free.
    std::vector<std::int32_t> spread;
    const auto take = [&](std::int64_t id) {
      const auto narrow = static_cast<std::int32_t>(id);
      if (id < 0 || id >= pages || spread.size() == kListed) return;
      if (std::find(spread.begin(), spread.end(), narrow) == spread.end()) spread.push_back(narrow);
    };
    for (std::int64_t n = 1; n <= 4; ++n) take(pages - n);
    for (std::int64_t elements = std::int64_t{1} << 34; elements >= page_words(); elements /= 2) {
      take(elements / page_words());
      take(elements / page_words() - 1);
    }
    std::mt19937_64 random(4);
    while (spread.size() < kListed)
      take(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(pages)));
    std::shuffle(spread.begin(), spread.end(), random);

    std::vector<std::string> families{"mma"};
    if (context_->facts().compute_capability == 90) families.push_back("hopper");
    const Pools small = pools(kListed, compact);
    const Pools large = pools(pages, spread);
    for (const std::string& family : families) {
      SCOPED_TRACE(family);
      const std::vector<std::uint16_t> expected = run(family, small, kListed, compact);
      for (const std::uint16_t word : expected) ASSERT_NE(word & 0x7F80, 0x7F80) << "not finite";
      EXPECT_EQ(run(family, large, pages, spread), expected);
    }
  }
};

TEST_P(GpuLargePool, SmallEnoughForAnyDevice) { check(1 << 10); }

TEST_P(GpuLargePool, FortyGigabytes) {
  constexpr std::int64_t kPoolBytes = 40'000'000'000;
  if (context_->facts().memory_bytes < kPoolBytes + kPoolBytes / 8) {
    GTEST_SKIP() << context_->facts().name << " has " << context_->facts().memory_bytes
                 << " bytes of memory";
  }
  check(kPoolBytes / 2 / page_bytes());
}

INSTANTIATE_TEST_SUITE_P(PageSize, GpuLargePool, testing::Values(16, 1));

}  // namespace
}  // namespace plait::cuda
