// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// ALiBi slopes of every size against the oracle. With a steep slope a row is decided by the keys
// next to it, whose bias is small: a backend that adds the bias of a tile's first key and takes
// most of it back loses the digits that are left. Small logits show it most: the bound is smallest.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "check/check_problem.h"
#include "check/field/field_run.h"
#include "support/cuda_options.h"

namespace plait::check {
namespace {

using field::Json;

// Published ones are below 1.
const Json kSlopes = {0.00390625, 0.5, 0.84, 1.0, 2.0, 300.0, 1e4, 3e38};
// With these, keys weigh that lie before all rows of a tile.
const Json kFlatSlopes = {0.05, 0.02, -0.03, 0.005, -0.002, 0.001, 0.0005, 0.0};

field::Shape shape_of(std::int64_t dim, std::int64_t kv_heads, const std::string& dtype) {
  field::Shape shape;
  shape.qo_lens = {70, 1};
  shape.kv_lens = {300, 200};
  shape.qo_heads = static_cast<std::int64_t>(kSlopes.size());
  shape.kv_heads = kv_heads;
  shape.dim_qk = shape.dim_vo = dim;
  shape.page_size = 16;
  shape.dtype = shape.o_dtype = dtype;
  return shape;
}

Json causal(Json document) {
  document["mask"] = {{"kind", "causal"}};
  document["alibi_slopes"] = kSlopes;
  document["sm_scale"] = 0.001;
  return document;
}

// Biases as large as these leave lse no digits for others: a problem for each.
Json with_slope(Json document, double slope) {
  document["alibi_slopes"] = std::vector<double>(kSlopes.size(), slope);
  return document;
}

struct Case {
  std::string name;
  Json document;
};

// What every family serves.
std::vector<Case> common_cases() {
  const Json paged = causal(field::paged(shape_of(128, 2, "bf16")));
  std::vector<Case> out = {{"paged", paged}};
  out.push_back({"logits of usual size", paged});
  out.back().document.erase("sm_scale");
  out.push_back({"logits of almost nothing", paged});
  out.back().document["sm_scale"] = 1e-30;
  out.push_back({"states of far keys alone", paged});
  out.back().document["plan"] = {{"policy", "fixed_chunk"}, {"kv_chunk", 64}};
  out.push_back({"soft cap", paged});
  out.back().document["logits_soft_cap"] = 0.5;
  out.push_back({"selected pages", paged});
  Json& kv = out.back().document["kv"];
  kv["kind"] = "selected";
  kv["positions"] = Json::array();
  for (const std::int64_t pages : {19, 13}) {  // of the two requests; some positions are left out
    for (std::int64_t n = 0; n < pages; ++n) kv["positions"].push_back(16 * n + (n > 4 ? 7 : 0));
  }
  for (const double slope : {300.0, -300.0}) {
    out.push_back({"no mask", with_slope(paged, slope)});
    out.back().document["mask"] = {{"kind", "none"}};
  }
  out.push_back({"flat slopes", paged});
  out.back().document["alibi_slopes"] = kFlatSlopes;
  out.push_back({"flat slopes, logits of usual size", out.back().document});
  out.back().document.erase("sm_scale");
  out.push_back({"states with flat slopes", out.back().document});
  out.back().document["state"] = true;
  field::Shape shape = shape_of(64, 8, "f16");
  shape.qo_lens = {130, 1};
  out.push_back({"ragged", causal(field::ragged(shape))});
  out.push_back({"window", out.back().document});
  out.back().document["mask"]["window_left"] = 100;
  shape = shape_of(256, 4, "bf16");
  shape.page_size = 5;
  out.push_back({"pages of 5", causal(field::paged(shape))});
  return out;
}

// What the CPU and mma serve.
std::vector<Case> other_cases() {
  std::vector<Case> out = {{"f32", causal(field::ragged(shape_of(40, 4, "f32")))},
                           {"fp8 cache", causal(field::paged(shape_of(128, 1, "bf16")))},
                           {"canonical segments", causal(field::paged(shape_of(128, 2, "f16")))},
                           {"sum", causal(field::paged(shape_of(64, 2, "f16")))},
                           {"flat slopes in f16", causal(field::ragged(shape_of(96, 2, "f16")))},
                           {"opposite signs", causal(field::paged(shape_of(128, 2, "bf16")))}};
  out[1].document["dtype"]["kv"] = "f8_e4m3";
  out[2].document["plan"] = {{"policy", "batch_invariant"}};
  out[3].document["reduction"] = {{"sum", "sigmoid"}, {"bias", -1.0}};
  out[3].document.erase("return_lse");
  out[4].document["alibi_slopes"] = kFlatSlopes;
  out[5].document["alibi_slopes"] = kFlatSlopes;
  out[5].document["sm_scale"] = -0.1;
  return out;
}

void expect_right(const RunOptions& options, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    try {
      field::FieldRun(options).run_right(c.document, c.name);
    } catch (const std::exception& failure) {
      ADD_FAILURE() << failure.what() << "\nrepro: plait check --device "
                    << device_name(options.device) << " --family " << options.family << " '"
                    << c.document.dump() << "'";
    }
  }
}

/// Under canonical segments a row's bits depend neither on the rows beside it nor on how its
/// prefill is cut, though that decides which tiles lie before all rows of an item.
void expect_canonical(const RunOptions& options) {
  field::Shape shape = shape_of(64, 2, "bf16");
  shape.qo_lens = {36};
  shape.kv_lens = {400};
  shape.o_dtype = "f32";
  Json document = field::paged(shape);
  document["mask"] = {{"kind", "causal"}};
  document["plan"] = {{"policy", "batch_invariant"}};
  document["alibi_slopes"] = {0.01, 0.05, -0.02, 0.1, 0.5, 300.0, 1e4, 0.002};
  for (const std::uint64_t seed : {1, 2}) {  // draws the cut
    const CheckReport report =
        check_problem(field::FieldRun(options).parse(document), options, seed);
    EXPECT_EQ(report.outcome, Outcome::kPassed)
        << "seed " << seed << ", " << document.dump() << ": "
        << (report.failures.empty() ? report.declined : report.failures.front());
  }
}

TEST(Alibi, SlopesOfEverySizeOnCpu) {
  expect_right({}, common_cases());
  expect_right({}, other_cases());
  expect_canonical({});
}

TEST(GpuAlibi, SlopesOfEverySizeInMma) {
  std::string reason;
  const auto options = test::family_options("mma", &reason);
  if (!options) GTEST_SKIP() << reason;
  expect_right(*options, common_cases());
  expect_right(*options, other_cases());
  expect_canonical(*options);
}

TEST(GpuAlibi, SlopesOfEverySizeInHopper) {
  std::string reason;
  const auto options = test::family_options("hopper", &reason);
  if (!options) GTEST_SKIP() << reason;
  expect_right(*options, common_cases());
}

}  // namespace
}  // namespace plait::check
