// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Pages of any size in family `hopper`: whole boxes of tokens, and pages whose rows are gathered.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
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

class GpuHopperPages : public HopperTest {
 protected:
  /// Pages in random order, unused slots full of NaN, no mask. `bad_id` stands in place of the last
  /// but one page of request `bad_request`.
  std::vector<std::uint16_t> run(int page, KvLayout layout, std::size_t bad_request = kRequests,
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
    std::iota(ids.host.begin(), ids.host.end(), 0);
    std::shuffle(ids.host.begin(), ids.host.end(), std::mt19937_64(page));
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

TEST_F(GpuHopperPages, BadIdPoisonsItsRequestAndIsReported) {
  for (const int page : {16, 5}) {
    for (const std::size_t request : {std::size_t{1}, std::size_t{2}}) {  // prefill, decode
      for (const std::int32_t id : {100'000, -1}) {
        const std::string text = std::to_string(id) + " in request " + std::to_string(request);
        SCOPED_TRACE("page " + std::to_string(page) + ": " + text);
        const std::vector<std::uint16_t> o = run(page, KvLayout::kNhd, request, id);
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

}  // namespace
}  // namespace plait::cuda
