// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Pages of any size in family `hopper`: whole boxes of tokens, and pages whose rows are gathered.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cuda/gpu_support.h"
#include "plait/attention.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

constexpr int kHeads = 8;
constexpr int kKvHeads = 2;
constexpr int kDim = 128;
constexpr std::int64_t kTokenWords = std::int64_t{kKvHeads} * kDim;
constexpr std::uint16_t kNan = 0xFFFF;
// Two decodes, a prefill and a few rows at once.
const std::vector<std::pair<int, int>> kBatch = {{1, 100}, {150, 300}, {1, 50}, {3, 3}};
constexpr std::size_t kRequests = 4;
constexpr std::int64_t kTotalQ = 155;
constexpr int kLongest = 300;

/// Moves pages about the pool, `run` at a time.
void shuffle_runs(std::vector<std::int32_t>& ids, std::size_t run, std::uint64_t seed) {
  std::vector<std::size_t> first((ids.size() + run - 1) / run);
  for (std::size_t n = 0; n < first.size(); ++n) first[n] = n * run;
  std::shuffle(first.begin(), first.end(), std::mt19937_64(seed));
  std::size_t at = 0;
  for (const std::size_t begin : first) {
    for (std::size_t n = begin; n < std::min(begin + run, ids.size()); ++n) {
      ids[at++] = static_cast<std::int32_t>(n);
    }
  }
}

class GpuHopperPages : public HopperTest {
 protected:
  /// Pages in random order, unused slots full of NaN, no mask. `bad_id` stands in place of the last
  /// but one page of request `bad_request`.
  std::vector<std::uint16_t> run(int page, KvLayout layout, std::size_t bad_request = kRequests,
                                 std::int32_t bad_id = 0) {
    return run_in_runs(page, layout, 1, bad_request, bad_id);
  }

  /// The same with `pages` at a time one after another in the pool.
  std::vector<std::uint16_t> run_in_runs(int page, KvLayout layout, std::size_t pages,
                                         std::size_t bad_request = kRequests,
                                         std::int32_t bad_id = 0) {
    OwnedBatch batch = paged_batch(kBatch, page);
    const std::vector<std::int32_t>& page_indptr = batch.views[0].page_indptr;
    const std::int64_t pool = listed_pages(batch);
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    DeviceArray<std::int32_t> ids(context_, static_cast<std::size_t>(pool));
    DeviceArray<std::uint16_t> q(context_, kTotalQ * kHeads * kDim);
    DeviceArray<std::uint16_t> o(context_, q.host.size());
    DeviceArray<std::uint16_t> k(context_, static_cast<std::size_t>(pool * page * kTokenWords));
    DeviceArray<std::uint16_t> v(context_, k.host.size());
    for (auto& word : q.host) word = bf16_of(normal(random));
    std::fill(k.host.begin(), k.host.end(), kNan);
    v.host = k.host;
    shuffle_runs(ids.host, pages, static_cast<std::uint64_t>(page));
    for (std::size_t r = 0; r < kRequests; ++r) {
      for (std::int64_t slot = 0; slot < kBatch[r].second; ++slot) {
        const std::int64_t id = ids.host[static_cast<std::size_t>(page_indptr[r] + slot / page)];
        for (std::int64_t head = 0; head < kKvHeads; ++head) {
          const std::int64_t row = layout == KvLayout::kHnd
                                       ? (id * kKvHeads + head) * page + slot % page
                                       : (id * page + slot % page) * kKvHeads + head;
          for (std::int64_t d = row * kDim; d < (row + 1) * kDim; ++d) {
            k.host[static_cast<std::size_t>(d)] = bf16_of(normal(random));
            v.host[static_cast<std::size_t>(d)] = bf16_of(normal(random));
          }
        }
      }
    }
    if (bad_request < kRequests) {
      ids.host[static_cast<std::size_t>(page_indptr[bad_request + 1]) - 2] = bad_id;
    }
    for (auto* array : {&q, &k, &v}) array->upload();
    ids.upload();
    o.poison(0xFF);

    AttentionSpec spec = paged_spec(kHeads, kKvHeads, kDim, page);
    spec.layout = layout;
    spec.mask = MaskKind::kNone;
    Capacity capacity;
    capacity.max_requests = kRequests;
    capacity.max_query_rows = kTotalQ;
    capacity.max_kv_tokens = kLongest + page;
    Attention::Options options;
    options.policy.kind = PolicyKind::kUnsplit;  // else chunks would end with pages
    attention_ = std::make_unique<Attention>(Engine(test_engine("hopper")), std::vector{spec},
                                             capacity, options);
    attention_->plan(batch.get());
    PagedRun run(spec, batch, q.device(), k.device(), v.device(), pool, ids.device(), o.device());
    attention_->run(run.args());
    o.download();
    return o.host;
  }

  std::unique_ptr<Attention> attention_;  // of the last run
};

TEST_F(GpuHopperPages, BitsDoNotDependOnThePageSize) {
  const std::vector<std::uint16_t> expected = run(16, KvLayout::kNhd);
  for (const std::uint16_t word : expected) ASSERT_NE(word & 0x7F80, 0x7F80) << "not finite";
  for (const int page : {1, 3, 5, 8, 19, 48, 544}) {
    const KvLayout layout = page % 2 == 0 ? KvLayout::kNhd : KvLayout::kHnd;
    EXPECT_EQ(run(page, layout), expected) << "page " << page;
    EXPECT_NO_THROW(attention_->status());
  }
}

// Rows that follow one another in the pool are fetched as boxes, those at the seams of runs are
// not.
TEST_F(GpuHopperPages, BitsDoNotDependOnRunsOfPages) {
  const std::vector<std::uint16_t> expected = run(16, KvLayout::kNhd);
  for (const int page : {1, 5}) {
    for (const std::size_t pages : {std::size_t{7}, std::size_t{75}, std::size_t{1000}}) {
      for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd}) {
        EXPECT_EQ(run_in_runs(page, layout, pages), expected) << page << ", " << pages;
        EXPECT_NO_THROW(attention_->status());
      }
    }
  }
}

TEST_F(GpuHopperPages, BadIdPoisonsItsRequestAndIsReported) {
  for (const int page : {16, 5}) {
    for (const std::size_t request : {std::size_t{1}, std::size_t{2}}) {  // prefill, decode
      for (const std::int32_t id : {100'000, -1}) {
        const std::string text = std::to_string(id) + " in request " + std::to_string(request);
        SCOPED_TRACE("page " + std::to_string(page) + ": " + text);
        const std::vector<std::uint16_t> o =
            run_in_runs(page, KvLayout::kNhd, id < 0 ? 1 : 1000, request, id);
        std::size_t at = 0;
        for (std::size_t r = 0; r < kRequests; ++r) {
          std::int64_t finite = 0;
          const std::int64_t words = kBatch[r].first * kHeads * kDim;
          for (std::int64_t i = 0; i < words; ++i) finite += (o[at++] & 0x7F80) != 0x7F80 ? 1 : 0;
          EXPECT_EQ(finite, r == request ? 0 : words) << "request " << r;
        }
        try {
          attention_->status();
          FAIL() << "the bad page id was not reported";
        } catch (const Error& error) {
          EXPECT_EQ(error.field(), "page_ids");
          EXPECT_EQ(error.value(), text);
        }
      }
    }
  }
}

// Prefill reads queries through a tensor map, decode does not: what the map cannot express is
// refused before decode is launched.
TEST_F(GpuHopperPages, RefusedOperandLaunchesNothing) {
  constexpr int kPage = 16;
  OwnedBatch batch = paged_batch(kBatch, kPage);
  const std::int64_t pool = listed_pages(batch);
  DeviceArray<std::int32_t> ids(context_, static_cast<std::size_t>(pool));
  DeviceArray<std::uint16_t> q(context_, kTotalQ * kHeads * kDim);
  DeviceArray<std::uint16_t> o(context_, q.host.size());
  DeviceArray<std::uint16_t> k(context_, static_cast<std::size_t>(pool * kPage * kTokenWords));
  shuffle_runs(ids.host, 1, kPage);
  for (auto* array : {&q, &k}) array->upload();
  ids.upload();
  o.poison(0xFF);
  const AttentionSpec spec = paged_spec(kHeads, kKvHeads, kDim, kPage);
  Capacity capacity;
  capacity.max_requests = kRequests;
  capacity.max_query_rows = kTotalQ;
  capacity.max_kv_tokens = kLongest;
  attention_ = std::make_unique<Attention>(Engine(test_engine("hopper")), std::vector{spec},
                                           capacity, Attention::Options{});
  attention_->plan(batch.get());
  PagedRun run(spec, batch, q.device(), k.device(), k.device(), pool, ids.device(), o.device());
  RunArgs args = run.args();
  args.q.data = q.device() + (kTotalQ - 1) * kHeads * kDim;
  args.q.strides[0] = -args.q.strides[0];
  try {
    attention_->run(args);
    FAIL() << "rows in descending order were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), "q.strides");
  }
  o.download();
  for (const std::uint16_t word : o.host) ASSERT_EQ(word, kNan);
}

}  // namespace
}  // namespace plait::cuda
