// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Batches that family `hopper` splits and merges in its own ways, against the oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "check/field/field_run.h"
#include "oracle/parse_problem.h"
#include "support/cuda_options.h"

namespace plait::check {
namespace {

using field::Json;

class GpuHopper : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    const auto options = test::family_options("hopper", &reason);
    if (!options) GTEST_SKIP() << reason;
    options_ = *options;
  }

  void expect_right(const Json& document, const std::string& what) const {
    try {
      field::FieldRun(options_).run_right(document, what);
    } catch (const field::CheckFailed& failure) {
      ADD_FAILURE() << failure.what() << "\nrepro: plait check --device cuda --family hopper '"
                    << document.dump() << "'";
    }
  }

  RunOptions options_;
};

TEST_F(GpuHopper, SplitPrefillAndDecodeTogether) {
  for (const std::int64_t dim : {64, 128, 256}) {
    const std::int64_t scale = dim == 128 ? 1 : 2;  // one dim at length, for the emulator's sake
    field::Shape shape;
    shape.qo_lens = {300 / scale, 1, 1, 33, 1};
    shape.kv_lens = {2000 / scale, 3000 / scale, 17, 33, 1024};
    shape.qo_heads = 8;
    shape.kv_heads = 2;
    shape.dim_qk = shape.dim_vo = dim;
    shape.page_size = 16;
    shape.dtype = shape.o_dtype = "bf16";
    Json document = field::paged(shape);
    document["mask"] = {{"kind", "causal"}};
    expect_right(document, "dim " + std::to_string(dim));
  }
}

TEST_F(GpuHopper, GroupsWiderThanADecodeTile) {
  field::Shape shape;
  shape.qo_lens = {1, 20, 1};
  shape.kv_lens = {700, 100, 15};
  shape.qo_heads = 64;
  shape.dim_qk = shape.dim_vo = 128;
  shape.page_size = 16;
  shape.dtype = shape.o_dtype = "bf16";
  Json document = field::paged(shape);
  document["mask"] = {{"kind", "causal"}};
  expect_right(document, "groups of 64");
}

TEST_F(GpuHopper, MoreShortItemsThanTheTableOfWorksHolds) {
  // Two workers of 48 items each, longest first; items of fewer blocks than warps and, in another
  // batch, of no keys, with which a worker may begin.
  for (const std::int64_t longest : {130, 0}) {
    for (const std::int64_t page : {16, 1}) {
      field::Shape shape;
      shape.qo_lens.assign(96, 1);
      for (std::int64_t r = 0; r < 96; ++r) {
        shape.kv_lens.push_back(std::min<std::int64_t>(longest, 3 + 7 * r % 131));
      }
      shape.qo_heads = 4;
      shape.dim_qk = shape.dim_vo = 64;
      shape.page_size = page;
      shape.dtype = shape.o_dtype = "bf16";
      Json document = field::paged(shape);
      document["mask"] = {{"kind", "causal"}};
      document["plan"] = {{"policy", "throughput"}, {"num_workers", 2}};
      expect_right(document,
                   "up to " + std::to_string(longest) + " keys, page " + std::to_string(page));
    }
  }
}

TEST_F(GpuHopper, TwoHeadsAtOnceAndOneAlone) {
  // Two workers that get heads of a request in threes, twos and ones.
  for (const std::int64_t dim : {64, 128}) {
    for (const std::int64_t page : {16, 5, 0}) {
      field::Shape shape;
      shape.qo_lens = {1, 2, 1, 1, 1};
      shape.kv_lens = {830, 800, 815, 77, 790};
      shape.kv_heads = 3;
      shape.qo_heads = 6;
      shape.dim_qk = shape.dim_vo = dim;
      shape.page_size = std::max<std::int64_t>(page, 1);
      shape.dtype = shape.o_dtype = "bf16";
      Json document = page == 0 ? field::ragged(shape) : field::paged(shape);
      document["mask"] = {{"kind", "causal"}};
      document["plan"] = {{"policy", "throughput"}, {"num_workers", 2}};
      expect_right(document, "dim " + std::to_string(dim) + ", page " + std::to_string(page));
    }
  }
}

TEST_F(GpuHopper, TwoHeadsAtOnceOfRunsThatAreCut) {
  // Three workers with both heads of one request and two thirds, cut where they are full.
  for (const std::int64_t page : {16, 1}) {
    field::Shape shape;
    shape.qo_lens = {1, 2, 1, 1, 1};
    shape.kv_lens = {2930, 2900, 2915, 2890, 2910};
    shape.kv_heads = 2;
    shape.qo_heads = 4;
    shape.dim_qk = shape.dim_vo = 128;
    shape.page_size = page;
    shape.dtype = shape.o_dtype = "bf16";
    Json document = field::paged(shape);
    document["mask"] = {{"kind", "causal"}};
    document["plan"] = {{"policy", "throughput"}, {"num_workers", 3}};
    expect_right(document, "page " + std::to_string(page));
  }
}

TEST_F(GpuHopper, MergesInALaunchOfTheirOwn) {
  // 160 fused rows behind 10 chunks of a prefix: more than last arrivers merge, see
  // src/cuda/executor.cpp.
  constexpr std::int64_t kRequests = 20;
  constexpr std::int64_t kPageSize = 16;
  constexpr std::int64_t kPrefixPages = 20;
  field::Shape shape;
  shape.qo_lens.assign(kRequests, 1);
  for (std::int64_t r = 0; r < kRequests; ++r) shape.kv_lens.push_back(1 + 5 * r);
  shape.qo_heads = 8;
  shape.dim_qk = shape.dim_vo = 128;
  shape.page_size = kPageSize;
  shape.dtype = shape.o_dtype = "bf16";
  Json document = field::paged(shape);
  Json& kv = document["kv"];
  Json prefix = {{"qo_indptr", {0, kRequests}},
                 {"indptr", {0, kPrefixPages}},
                 {"indices", Json::array()},
                 {"last_page_len", {kPageSize}}};
  const auto own_pages = static_cast<std::int64_t>(kv["indices"].size());
  for (std::int64_t page = 0; page < kPrefixPages; ++page) {
    prefix["indices"].push_back(own_pages + page);
  }
  Json own = {{"qo_indptr", document["qo_indptr"]}};
  for (const char* key : {"indptr", "indices", "last_page_len"}) {
    own[key] = kv[key];
    kv.erase(key);
  }
  kv["kind"] = "cascade";
  kv["levels"] = {prefix, own};
  for (const char* cache : {"k_cache", "v_cache"}) kv[cache]["shape"][0] = own_pages + kPrefixPages;
  document["mask"] = {{"kind", "causal"}};
  document["plan"] = {{"policy", "fixed_chunk"}, {"kv_chunk", 32}};
  expect_right(document, "a softmax");
  document["sink"] = {0.5, -1.0, 2.0, 0.0, 1.5, -0.5, 3.0, -2.0};
  expect_right(document, "with a sink");
  document["state"] = true;
  expect_right(document, "the mergeable state, before the sink");
}

TEST_F(GpuHopper, SoftCapsAskOnlyWhatIsSeen) {
  // Warps choose by their largest logits how caps are computed. Items of less than 64 rows have
  // rows of the request before them in their tile, and all rows the keys that a mask hides.
  constexpr std::int64_t kOthers = 12;  // rows of the request before
  constexpr std::int64_t kOwn = 15;
  constexpr std::int64_t kKeys = 200;   // a tile that needs no mask, and one that does
  constexpr std::int64_t kSlots = 208;  // of a request's pages
  for (const std::int64_t dim : {128, 256}) {
    field::Shape shape;
    shape.qo_lens = {kOthers, kOwn};
    shape.kv_lens = {kKeys, kKeys};
    shape.qo_heads = 4;
    shape.dim_qk = shape.dim_vo = dim;
    shape.page_size = 16;
    shape.dtype = shape.o_dtype = "bf16";
    Json document = field::paged(shape);
    document["mask"] = {{"kind", "causal"}};
    document["logits_soft_cap"] = 30.0;
    document["plan"] = {{"policy", "unsplit"}};
    const auto outputs_with = [&](double others, double last_key) {
      oracle::Problem problem = oracle::problem_from_json(document, nullptr);
      problem.q.fill([&](const auto& at) {
        return at[0] < kOthers ? others
                               : 0.25 * static_cast<double>((at[0] + 2 * at[1] + 3 * at[2]) % 7);
      });
      problem.k.fill([&](const auto& at) {
        const std::int64_t key = at[0] * shape.page_size + at[1];
        const bool last = key == kSlots + kKeys - 1;
        return last ? last_key : 0.5 * static_cast<double>((key * key + at[3]) % 7 - 2);
      });
      return field::FieldRun(options_).run(problem);
    };
    const RunResult expected = outputs_with(0.5, 0.5);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const auto& [others, last_key] :
         {std::pair{nan, 0.5}, {100.0, 0.5}, {0.5, nan}, {0.5, 100.0}}) {
      const RunResult result = outputs_with(others, last_key);
      const std::string what = "dim " + std::to_string(dim) + ", other rows of " +
                               std::to_string(others) + ", last key of " + std::to_string(last_key);
      // Without the last warp's 16 rows, one of which sees the last key.
      for (std::int64_t n = kOthers * shape.qo_heads; n < (kOthers + kOwn - 4) * shape.qo_heads;
           ++n) {
        ASSERT_EQ(result.lse.load(n), expected.lse.load(n)) << what << ", " << n;
        for (std::int64_t i = n * dim; i < (n + 1) * dim; ++i) {
          ASSERT_EQ(result.o.load(i), expected.o.load(i)) << what << ", " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace plait::check
