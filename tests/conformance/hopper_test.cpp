// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Batches that family `hopper` splits and merges in its own ways, against the oracle.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "check/field/field_run.h"
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

}  // namespace
}  // namespace plait::check
