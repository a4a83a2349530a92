// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The oracle against closed forms: with q = 0 attention is the mean of the visible keys.
#include "oracle/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oracle/keys.h"
#include "oracle/parse_problem.h"
#include "support/problems.h"

namespace plait::oracle {
namespace {

using test::generated;
using test::mean_probe;
using test::normal;
using test::paged_example;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Answer solved(const Json& document) { return solve(parse_problem(document.dump(), nullptr)); }

// Mean and lse of each row of a one-head probe.
void expect_rows(const Json& document, const std::vector<double>& means,
                 const std::vector<double>& counts) {
  const Problem problem = parse_problem(document.dump(), nullptr);
  const Answer answer = solve(problem);
  ASSERT_EQ(answer.lse.size(), means.size());
  for (std::size_t row = 0; row < means.size(); ++row) {
    EXPECT_NEAR(answer.o[row * static_cast<std::size_t>(problem.head_dim_vo)], means[row], 1e-12)
        << "row " << row;
    if (counts[row] == 0) {
      EXPECT_EQ(answer.lse[row], -kInfinity) << "row " << row;
    } else {
      EXPECT_NEAR(answer.lse[row], std::log(counts[row]), 1e-12) << "row " << row;
    }
  }
}

TEST(Oracle, Masks) {
  expect_rows(mean_probe(2, 3, {{"kind", "none"}}), {1, 1}, {3, 3});
  expect_rows(mean_probe(2, 3, {{"kind", "causal"}}), {0.5, 1}, {2, 3});
  expect_rows(mean_probe(5, 2, {{"kind", "causal"}}), {0, 0, 0, 0, 0.5}, {0, 0, 0, 1, 2});
  expect_rows(mean_probe(1, 8, {{"kind", "causal"}, {"window_left", 3}}), {5.5}, {4});
  expect_rows(mean_probe(1, 8, {{"kind", "none"}, {"window_left", 0}}), {7}, {1});
  expect_rows(mean_probe(2, 4, {{"kind", "none"}, {"window_left", 0}}), {2.5, 3}, {2, 1});
  Json custom = mean_probe(2, 3, {{"kind", "custom"}, {"custom", {{{1, 0, 1}, {0, 0, 0}}}}});
  expect_rows(custom, {1, 0}, {2, 0});
  custom["mask"] = {{"kind", "custom"}, {"packed", {5}}};
  expect_rows(custom, {1, 0}, {2, 0});
  custom["mask"]["window_left"] = 0;
  expect_rows(custom, {2, 0}, {1, 0});
}

TEST(Oracle, PagedFollowsTheTable) {
  Json document = paged_example();
  document["q"]["fill"] = "zeros";
  document["kv"]["v_cache"]["fill"] = {{"index", 0}};  // v = page id
  document["return_lse"] = true;
  const Answer answer = solved(document);
  EXPECT_NEAR(answer.o[0], (5 * 4 + 1) / 5.0, 1e-12);
  EXPECT_EQ(answer.o[2 * 64], 0.0);
  EXPECT_NEAR(answer.o[4 * 64], 7.0, 1e-12);
  EXPECT_EQ(answer.lse[2], -kInfinity);
  document["kv"]["v_cache"]["fill"] = {{"index", 1}};  // v = slot
  EXPECT_NEAR(solved(document).o[0], (0 + 1 + 2 + 3 + 0) / 5.0, 1e-12);
}

TEST(Oracle, HndAndStridesAreOnlyAddresses) {
  Json nhd = paged_example();
  nhd["kv"]["k_cache"]["fill"] = {{"index", 1}};
  Json hnd = nhd;
  hnd["layout"] = "HND";
  hnd["kv"]["k_cache"] = generated({8, 1, 4, 64}, {{"index", 2}});
  hnd["kv"]["v_cache"]["shape"] = {8, 1, 4, 64};  // one head: the element order is the same
  EXPECT_EQ(solved(nhd).o, solved(hnd).o);
  Json strided = nhd;
  strided["kv"]["k_cache"]["stride"] = {700, 128, 70, 1};
  strided["kv"]["v_cache"]["stride"] = {256, 64, 64, 1};
  EXPECT_EQ(solved(nhd).o, solved(strided).o);
}

TEST(Oracle, CascadeEqualsFlat) {
  Json flat = paged_example();
  flat["qo_indptr"] = {0, 1, 3};
  flat["mask"] = {{"kind", "causal"}, {"window_left", 5}};
  flat["alibi_slopes"] = {0.5, 0.25};
  flat["rope"] = {{"kind", "half"}};
  Json cascade = flat;
  // Shared pages 5, 1 (full, then 2 tokens are not possible flat: the prefix ends on a page).
  flat["kv"]["indptr"] = {0, 3, 6};
  flat["kv"]["indices"] = {5, 1, 0, 5, 1, 2};
  flat["kv"]["last_page_len"] = {4, 3};
  const Json k = flat["kv"]["k_cache"];
  const Json v = flat["kv"]["v_cache"];
  cascade["kv"] = {
      {"kind", "cascade"},
      {"page_size", 4},
      {"k_cache", k},
      {"v_cache", v},
      {"levels",
       {{{"qo_indptr", {0, 3}}, {"indptr", {0, 1}}, {"indices", {5}}, {"last_page_len", {4}}},
        {{"qo_indptr", {0, 3}}, {"indptr", {0, 1}}, {"indices", {1}}, {"last_page_len", {4}}},
        {{"qo_indptr", {0, 1, 3}},
         {"indptr", {0, 1, 2}},
         {"indices", {0, 2}},
         {"last_page_len", {4, 3}}}}}};
  const Answer a = solved(flat);
  const Answer b = solved(cascade);
  for (std::size_t n = 0; n < a.o.size(); ++n) ASSERT_NEAR(a.o[n], b.o[n], 1e-13) << n;
}

TEST(Oracle, CascadeCustomMaskCoversTheLastLevel) {
  Json document = mean_probe(2, 1, {{"kind", "custom"}, {"custom", {{{1, 0}, {0, 0}}}}});
  document["kv"] = {
      {"kind", "cascade"},
      {"page_size", 2},
      {"k_cache", generated({3, 2, 1, 64}, normal(1))},
      {"v_cache", generated({3, 2, 1, 64}, {{"index", 0}})},
      {"levels",
       {{{"qo_indptr", {0, 2}}, {"indptr", {0, 1}}, {"indices", {1}}, {"last_page_len", {2}}},
        {{"qo_indptr", {0, 2}}, {"indptr", {0, 1}}, {"indices", {2}}, {"last_page_len", {2}}}}}};
  expect_rows(document, {4.0 / 3, 1}, {3, 2});
}

TEST(Oracle, BlockSparse) {
  Json document = mean_probe(4, 6, {{"kind", "none"}});
  document["kv"] = {{"kind", "bsr"},
                    {"k", generated({6, 1, 64}, normal(5))},
                    {"v", generated({6, 1, 64}, {{"index", 0}})},
                    {"block_rows", {1, 3}},
                    {"block_cols", {1, 2, 3}},
                    {"indptr", {0, 2, 3}},
                    {"indices", {0, 2, 1}}};
  expect_rows(document, {3, 1.5, 1.5, 1.5}, {4, 2, 2, 2});
  document["kv"]["block_mask"] = {{{1}}, {{0, 1, 1}}, {{1, 0}, {0, 0}, {0, 1}}};
  expect_rows(document, {3, 1, 0, 2}, {3, 1, 0, 1});
  document["mask"] = {{"kind", "causal"}};
  expect_rows(document, {0, 1, 0, 2}, {1, 1, 0, 1});
}

TEST(Oracle, SelectedUsesTruePositions) {
  Json document = mean_probe(2, 1, {{"kind", "causal"}});
  document["kv"] = {{"kind", "selected"},
                    {"page_size", 2},
                    {"indptr", {0, 2}},
                    {"indices", {4, 1}},
                    {"positions", {0, 6}},
                    {"last_page_len", {2}},
                    {"k_cache", generated({5, 2, 1, 64}, normal(5))},
                    {"v_cache", generated({5, 2, 1, 64}, {{"index", 0}})}};
  // kv_len = 8: row 0 is position 6 and sees tokens 0, 1 (page 4) and 6 (page 1).
  expect_rows(document, {(4 + 4 + 1) / 3.0, (4 + 4 + 1 + 1) / 4.0}, {3, 4});
  document["mask"]["window_left"] = 1;
  expect_rows(document, {1, 1}, {1, 2});
}

TEST(Oracle, SelectedPerKvHead) {
  Json document = mean_probe(1, 1, {{"kind", "none"}}, 2);
  document["kv"] = {{"kind", "selected"},
                    {"page_size", 2},
                    {"per_kv_head", true},
                    {"indptr", {0, 2, 3}},
                    {"indices", {4, 1, 2}},
                    {"positions", {0, 2, 2}},
                    {"last_page_len", {1, 1}},
                    {"k_cache", generated({5, 2, 2, 64}, normal(5))},
                    {"v_cache", generated({5, 2, 2, 64}, {{"index", 0}})}};
  const Answer answer = solved(document);
  EXPECT_NEAR(answer.o[0], 3.0, 1e-12);
  EXPECT_NEAR(answer.o[64], 2.0, 1e-12);
  EXPECT_NEAR(answer.lse[1], 0.0, 1e-12);
}

TEST(Oracle, SinkCapScalesAndState) {
  Json document = mean_probe(1, 4, {{"kind", "none"}});
  document["kv"]["v"]["fill"] = "ones";
  document["sink"] = Json::array({0});
  Answer answer = solved(document);
  EXPECT_NEAR(answer.o[0], 0.8, 1e-12);
  EXPECT_NEAR(answer.lse[0], std::log(4.0), 1e-12);
  document["state"] = true;
  EXPECT_NEAR(solved(document).o[0], 1.0, 1e-12);
  document["state"] = false;
  document["sink"] = Json::array({1e4});
  EXPECT_EQ(solved(document).o[0], 0.0);
  document["sink"] = Json::array({"-Infinity"});
  EXPECT_NEAR(solved(document).o[0], 1.0, 1e-12);
  document["v_scale"] = 0.5;
  EXPECT_NEAR(solved(document).o[0], 0.5, 1e-12);

  Json capped = mean_probe(1, 2, {{"kind", "none"}}, 1, 2);
  capped["q"] = {{"data", {{{2, 0}}}}};
  capped["kv"]["k"] = {{"data", {{{3, 0}}, {{0, 1}}}}};
  capped["sm_scale"] = 0.5;
  capped["k_scale"] = 2;
  EXPECT_NEAR(solved(capped).lse[0], std::log(std::exp(6.0) + 1), 1e-12);
  capped["logits_soft_cap"] = 5;
  EXPECT_NEAR(solved(capped).lse[0], std::log(std::exp(5 * std::tanh(6.0 / 5)) + 1), 1e-12);
  capped["alibi_slopes"] = Json::array({0.25});
  EXPECT_NEAR(solved(capped).lse[0], std::log(std::exp(5 * std::tanh(6.0 / 5) - 0.25) + 1), 1e-12);
}

TEST(Oracle, SigmoidSum) {
  Json document = mean_probe(1, 4, {{"kind", "none"}});
  document.erase("return_lse");
  document["reduction"] = {{"sum", "sigmoid"}, {"bias", 0.0}};
  const Answer answer = solved(document);
  EXPECT_NEAR(answer.o[0], 0.5 * (0 + 1 + 2 + 3), 1e-12);
  EXPECT_TRUE(answer.lse.empty());
}

// A rotation by the same angle on both sides cancels; by different ones it is a known cosine.
TEST(Oracle, RopeTurnsByRelativePosition) {
  Json document = mean_probe(1, 1, {{"kind", "none"}}, 1, 4);
  document["q"] = {{"data", {{{1, 0, 0, 0}}}}};
  document["kv"]["k"] = {{"data", {{{1, 0, 0, 0}}}}};
  document["sm_scale"] = 1.0;
  for (const char* kind : {"half", "interleaved"}) {
    document["rope"] = {{"kind", kind}, {"q_positions", {{7}}}, {"k_positions", {{5}}}};
    EXPECT_NEAR(solved(document).lse[0], std::cos(2.0), 1e-12) << kind;
    document["rope"] = {{"kind", kind}};
    EXPECT_NEAR(solved(document).lse[0], 1.0, 1e-12) << kind;
  }
  // The partner of element 0 tells the two pairings apart.
  document["q"] = {{"data", {{{0, 0, 1, 0}}}}};
  document["rope"] = {{"kind", "half"}, {"q_positions", {{7}}}, {"k_positions", {{5}}}};
  EXPECT_NEAR(solved(document).lse[0], -std::sin(2.0), 1e-12);
  document["q"] = {{"data", {{{0, 1, 0, 0}}}}};
  document["rope"]["kind"] = "interleaved";
  EXPECT_NEAR(solved(document).lse[0], -std::sin(2.0), 1e-12);
  // Elements past rotary_dim stay.
  document["q"] = {{"data", {{{0, 0, 0, 1}}}}};
  document["kv"]["k"] = {{"data", {{{0, 0, 0, 1}}}}};
  document["rope"]["rotary_dim"] = 2;
  EXPECT_NEAR(solved(document).lse[0], 1.0, 1e-12);
}

TEST(Oracle, RopeFrequencies) {
  RopeOptions rope;
  rope.kind = Rope::kHalf;
  rope.rotary_dim = 128;
  EXPECT_DOUBLE_EQ(rope_frequency(rope, 0), 1.0);
  EXPECT_NEAR(rope_frequency(rope, 32), 0.01, 1e-15);
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 4;
  EXPECT_DOUBLE_EQ(rope_frequency(rope, 0), 0.25);
  rope.scaling = RopeScaling::kLlama31;
  rope.factor = 8;
  rope.theta = 500000;
  EXPECT_DOUBLE_EQ(rope_frequency(rope, 0), 1.0);
  const double slowest = std::pow(500000.0, -126.0 / 128.0);
  EXPECT_DOUBLE_EQ(rope_frequency(rope, 63), slowest / 8);
  // Between the two limits the blend is monotone.
  for (std::int64_t pair = 1; pair < 64; ++pair) {
    EXPECT_LT(rope_frequency(rope, pair), rope_frequency(rope, pair - 1));
  }
}

TEST(Oracle, SelectedRopePositionsPerKeptToken) {
  Json document = mean_probe(1, 1, {{"kind", "none"}}, 1, 2);
  document["q"] = {{"data", {{{1, 0}}}}};
  document["kv"] = {{"kind", "selected"},
                    {"page_size", 1},
                    {"indptr", {0, 2}},
                    {"indices", {0, 1}},
                    {"positions", {0, 100}},
                    {"last_page_len", {1}},
                    {"k_cache", generated({2, 1, 1, 2}, "ones")},
                    {"v_cache", generated({2, 1, 1, 2}, "ones")}};
  document["rope"] = {{"kind", "half"}, {"q_positions", {{1}}}, {"k_positions", {{0, 1}}}};
  const Problem problem = parse_problem(document.dump(), nullptr);
  const auto keys = listed_keys(problem, 0, 0, 0);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[1].position, 100);
  EXPECT_EQ(keys[1].rope_position, 1);
}

TEST(Oracle, SamePrecisionReferenceIsClose) {
  Json document = mean_probe(3, 40, {{"kind", "causal"}}, 2);
  document["q"]["fill"] = normal(9);
  document["kv"]["v"]["fill"] = normal(10);
  document["dtype"] = {{"q", "bf16"}, {"kv", "bf16"}, {"o", "bf16"}};
  const Problem problem = parse_problem(document.dump(), nullptr);
  const Answer exact = solve(problem);
  const Answer rounded = solve_same_precision(problem);
  double error = 0;
  for (std::size_t n = 0; n < exact.o.size(); ++n) {
    error = std::fmax(error, std::fabs(exact.o[n] - rounded.o[n]));
  }
  EXPECT_GT(error, 1e-5);  // bf16 does lose something
  EXPECT_LT(error, 2e-2);
  for (std::size_t n = 0; n < exact.lse.size(); ++n) {
    EXPECT_NEAR(exact.lse[n], rounded.lse[n], 1e-5);
  }
}

// A matrix unit multiplies fp8 by fp8 in bf16: scores stay exact and weights are rounded.
TEST(Oracle, SamePrecisionOfEightBitOperandsIsBf16) {
  Json document = mean_probe(3, 40, {{"kind", "causal"}}, 2);
  document["q"]["fill"] = normal(9);
  document["kv"]["v"]["fill"] = normal(10);
  const auto error = [&](const char* q, const char* kv) {
    document["dtype"] = {{"q", q}, {"kv", kv}, {"o", "f32"}};
    const Problem problem = parse_problem(document.dump(), nullptr);
    const Answer exact = solve(problem);
    const Answer rounded = solve_same_precision(problem);
    double largest = 0;
    for (std::size_t n = 0; n < exact.o.size(); ++n) {
      largest = std::fmax(largest, std::fabs(exact.o[n] - rounded.o[n]));
    }
    return largest;
  };
  EXPECT_GT(error("f8_e4m3", "f8_e5m2"), 1e-5);
  EXPECT_GT(error("f8_e5m2", "bf16"), 1e-5);
  EXPECT_LT(error("f8_e5m2", "f32"), 1e-6);
}

TEST(Oracle, RefusesUserVariants) {
  Json document = mean_probe(1, 1, {{"kind", "none"}});
  document["variant"] = {{"source", "struct X {};"}, {"name", "X"}};
  EXPECT_THROW(solved(document), Error);
}

}  // namespace
}  // namespace plait::oracle
