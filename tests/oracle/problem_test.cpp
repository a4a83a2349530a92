// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The parser of problem files: what it accepts, and that every refusal names the field.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "oracle/parse_problem.h"
#include "support/problems.h"

namespace plait::oracle {
namespace {

using test::generated;
using test::mean_probe;
using test::normal;
using test::paged_example;
using test::refused_field;
using test::refused_message;

// Applies `value` at a JSON pointer and says which field the parser then refuses.
std::string refused(Json document, const char* pointer, Json value) {
  document[Json::json_pointer(pointer)] = std::move(value);
  return refused_field(document);
}
std::string refused_without(Json document, const char* pointer) {
  const Json::json_pointer at(pointer);
  document[at.parent_pointer()].erase(at.back());
  return refused_field(document);
}

Json bsr_example() {
  Json document = mean_probe(4, 6, {{"kind", "none"}});
  document["kv"] = {{"kind", "bsr"},
                    {"k", generated({6, 1, 64}, normal(5))},
                    {"v", generated({6, 1, 64}, {{"index", 0}})},
                    {"block_rows", 2},
                    {"block_cols", {1, 2, 3}},
                    {"indptr", {0, 2, 3}},
                    {"indices", {0, 2, 1}}};
  return document;
}

Json cascade_example() {
  Json document = paged_example();
  document["kv"] = {
      {"kind", "cascade"},
      {"page_size", 4},
      {"k_cache", generated({8, 4, 1, 64}, normal(2))},
      {"v_cache", generated({8, 4, 1, 64}, normal(3))},
      {"levels",
       {{{"qo_indptr", {0, 3}}, {"indptr", {0, 2}}, {"indices", {5, 1}}, {"last_page_len", {1}}},
        {{"qo_indptr", {0, 1, 2, 3}},
         {"indptr", {0, 1, 1, 2}},
         {"indices", {0, 2}},
         {"last_page_len", {4, 0, 3}}}}}};
  return document;
}

Json selected_example() {
  Json document = paged_example();
  document["kv"]["kind"] = "selected";
  document["kv"]["positions"] = {0, 12, 4};
  return document;
}

TEST(ParseProblem, AcceptsTheExample) {
  const Problem problem = parse_problem(paged_example().dump(), nullptr);
  EXPECT_EQ(problem.num_requests(), 3);
  EXPECT_EQ(problem.total_q(), 3);
  EXPECT_EQ(kv_len(problem, 0), 5);
  EXPECT_EQ(kv_len(problem, 1), 0);
  EXPECT_EQ(kv_len(problem, 2), 3);
  EXPECT_DOUBLE_EQ(problem.sm_scale, 0.125);
  EXPECT_EQ(problem.mask, Mask::kNone);
  EXPECT_FALSE(problem.return_lse);
}

TEST(ParseProblem, AcceptsEveryOption) {
  Json document = paged_example();
  document["layout"] = "NHD";
  document["mask"] = {{"kind", "causal"}, {"window_left", -1}};
  document["sm_scale"] = 0.125;
  document["logits_soft_cap"] = 0.0;
  document["alibi_slopes"] = {0.5, 0.25};
  document["sink"] = {0.0, 1.0};
  document["k_scale"] = 1.0;
  document["v_scale"] = Json::array({2.0});
  document["rope"] = {{"kind", "half"},
                      {"theta", 10000.0},
                      {"rotary_dim", 64},
                      {"scaling",
                       {{"kind", "llama3.1"},
                        {"factor", 8},
                        {"low_freq_factor", 1},
                        {"high_freq_factor", 4},
                        {"original_max_position", 8192}}}};
  document["reduction"] = "softmax";
  document["plan"] = {{"policy", "fixed_chunk"}, {"kv_chunk", 8}, {"num_workers", 3}};
  document["return_lse"] = true;
  const Problem problem = parse_problem(document.dump(), nullptr);
  EXPECT_EQ(problem.policy, PolicyName::kFixedChunk);
  EXPECT_EQ(problem.rope.scaling, RopeScaling::kLlama31);
  EXPECT_EQ(problem.v_scale, std::vector<double>{2.0});
  EXPECT_EQ(refused_field(bsr_example()), "accepted");
  EXPECT_EQ(refused_field(cascade_example()), "accepted");
  EXPECT_EQ(refused_field(selected_example()), "accepted");
}

TEST(ParseProblem, RequiredKeys) {
  for (const char* key : {"version", "num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo",
                          "dtype", "q", "qo_indptr", "kv"}) {
    EXPECT_EQ(refused_without(paged_example(), (std::string("/") + key).c_str()), key);
  }
  for (const char* key :
       {"kind", "page_size", "indptr", "indices", "last_page_len", "k_cache", "v_cache"}) {
    EXPECT_EQ(refused_without(paged_example(), (std::string("/kv/") + key).c_str()),
              std::string("kv.") + key);
  }
}

TEST(ParseProblem, UnknownKeysByName) {
  EXPECT_EQ(refused(paged_example(), "/logit_soft_cap", 1), "logit_soft_cap");
  EXPECT_EQ(refused(paged_example(), "/kv/block_rows", 1), "kv.block_rows");
  EXPECT_EQ(refused(paged_example(), "/kv/positions", {0}), "kv.positions");
  EXPECT_EQ(refused(paged_example(), "/q/filler", 1), "q.filler");
  EXPECT_EQ(refused(paged_example(), "/dtype/v", "f16"), "dtype.v");
  EXPECT_EQ(refused(paged_example(), "/mask", {{"kind", "causal"}, {"window", 3}}), "mask.window");
  EXPECT_EQ(refused(paged_example(), "/mask", {{"kind", "causal"}, {"custom", 3}}), "mask.custom");
  EXPECT_EQ(refused(paged_example(), "/rope", {{"kind", "half"}, {"base", 3}}), "rope.base");
  EXPECT_EQ(refused(paged_example(), "/plan", {{"chunk", 3}}), "plan.chunk");
}

TEST(ParseProblem, HeadsAndDims) {
  EXPECT_EQ(refused(paged_example(), "/version", 2), "version");
  EXPECT_EQ(refused(paged_example(), "/num_qo_heads", 0), "num_qo_heads");
  EXPECT_EQ(refused(paged_example(), "/num_qo_heads", 2.0), "num_qo_heads");
  EXPECT_EQ(refused(paged_example(), "/num_kv_heads", 4), "num_qo_heads");
  EXPECT_EQ(refused(paged_example(), "/head_dim_qk", 577), "head_dim_qk");
  EXPECT_EQ(refused(paged_example(), "/head_dim_vo", 513), "head_dim_vo");
  EXPECT_EQ(refused(paged_example(), "/head_dim_qk", 32), "q");
  EXPECT_EQ(refused(paged_example(), "/head_dim_vo", 32), "kv.v_cache");
  EXPECT_EQ(refused(paged_example(), "/dtype/kv", "float16"), "dtype.kv");
  EXPECT_EQ(refused(paged_example(), "/dtype/q", "i32"), "dtype.q");
  EXPECT_EQ(refused(paged_example(), "/layout", "NDH"), "layout");
  EXPECT_EQ(refused(paged_example(), "/layout", "HND"), "kv.k_cache");
  EXPECT_EQ(refused(bsr_example(), "/layout", "HND"), "layout");
  EXPECT_EQ(refused(mean_probe(1, 2, {{"kind", "none"}}), "/layout", "HND"), "layout");
}

TEST(ParseProblem, PageTables) {
  const Json base = paged_example();
  EXPECT_EQ(refused(base, "/qo_indptr", {0, 2, 1, 3}), "qo_indptr[2]");
  EXPECT_EQ(refused(base, "/qo_indptr", {1, 2, 3}), "qo_indptr[0]");
  EXPECT_EQ(refused(base, "/qo_indptr", Json::array()), "qo_indptr");
  EXPECT_EQ(refused(base, "/qo_indptr", {0, 1, 2, 4}), "q");
  EXPECT_EQ(refused(base, "/kv/indptr", {0, 2, 1, 3}), "kv.indptr[2]");
  EXPECT_EQ(refused(base, "/kv/indptr", {0, 2, 3}), "kv.indptr");
  EXPECT_EQ(refused(base, "/kv/indptr", {0, 2, 2, 4}), "kv.indices");
  EXPECT_EQ(refused(base, "/kv/indices", {5, 1, 8}), "kv.indices[2]");
  EXPECT_EQ(refused(base, "/kv/indices", {5, -1, 7}), "kv.indices[1]");
  EXPECT_EQ(refused(base, "/kv/indices", {5, 5, 7}), "kv.indices[1]");
  EXPECT_EQ(refused(base, "/kv/indices", {5, 1.5, 7}), "kv.indices[1]");
  EXPECT_EQ(refused(base, "/kv/last_page_len", {1, 0, 0}), "kv.last_page_len[2]");
  EXPECT_EQ(refused(base, "/kv/last_page_len", {5, 0, 3}), "kv.last_page_len[0]");
  EXPECT_EQ(refused(base, "/kv/last_page_len", {1, 1, 3}), "kv.last_page_len[1]");
  EXPECT_EQ(refused(base, "/kv/last_page_len", {1, 3}), "kv.last_page_len");
  EXPECT_EQ(refused(base, "/kv/page_size", 0), "kv.page_size");
  EXPECT_EQ(refused(base, "/kv/page_size", 8), "kv.k_cache");
  EXPECT_EQ(refused(base, "/kv/v_cache/shape", {7, 4, 1, 64}), "kv.v_cache");
  EXPECT_EQ(refused(base, "/kv/kv_cache", base["kv"]["k_cache"]), "kv.kv_cache");
  EXPECT_EQ(refused(base, "/kv/kind", "page"), "kv.kind");
  const std::string message = refused_message([&] {
    Json document = base;
    document["kv"]["last_page_len"][2] = 9;
    return document.dump();
  }());
  EXPECT_EQ(message, "kv.last_page_len[2]: got 9, expected 1..4 (page_size) tokens");
}

TEST(ParseProblem, Options) {
  const Json base = paged_example();
  EXPECT_EQ(refused(base, "/mask", {{"kind", "causal"}, {"window_left", -2}}), "mask.window_left");
  EXPECT_EQ(refused(base, "/mask", {{"kind", "triangle"}}), "mask.kind");
  EXPECT_EQ(refused(base, "/logits_soft_cap", -1), "logits_soft_cap");
  EXPECT_EQ(refused(base, "/alibi_slopes", {0.5}), "alibi_slopes");
  EXPECT_EQ(refused(base, "/sink", {0.5, 1, 2}), "sink");
  EXPECT_EQ(refused(base, "/k_scale", {0.5, 1}), "k_scale");
  EXPECT_EQ(refused(base, "/k_scale", "one"), "k_scale");
  EXPECT_EQ(refused(base, "/return_lse", 1), "return_lse");
  EXPECT_EQ(refused(base, "/rope", {{"kind", "whole"}}), "rope.kind");
  EXPECT_EQ(refused(base, "/rope", {{"kind", "half"}, {"rotary_dim", 66}}), "rope.rotary_dim");
  EXPECT_EQ(refused(base, "/rope", {{"kind", "half"}, {"rotary_dim", 31}}), "rope.rotary_dim");
  EXPECT_EQ(refused(base, "/rope", {{"kind", "half"}, {"theta", 0}}), "rope.theta");
  EXPECT_EQ(refused(base, "/rope", {{"kind", "half"}, {"scaling", {{"kind", "linear"}}}}),
            "rope.scaling.factor");
  EXPECT_EQ(refused(base, "/rope", {{"kind", "half"}, {"q_positions", {{1}, {2}, {3, 4}}}}),
            "rope.q_positions[2]");
  EXPECT_EQ(refused(base, "/rope",
                    {{"kind", "half"}, {"k_positions", {{0, 1, 2, 3, 4}, Json::array(), {0, 1}}}}),
            "rope.k_positions[2]");
  EXPECT_EQ(refused(base, "/plan", {{"policy", "fast"}}), "plan.policy");
  EXPECT_EQ(refused(base, "/plan", {{"policy", "fixed_chunk"}}), "plan.kv_chunk");
  EXPECT_EQ(refused(base, "/plan", {{"policy", "fixed_chunk"}, {"kv_chunk", 6}}), "plan.kv_chunk");
  EXPECT_EQ(refused(base, "/plan", {{"policy", "unsplit"}, {"kv_chunk", 8}}), "plan.kv_chunk");
  EXPECT_EQ(refused(base, "/plan", {{"num_workers", 0}}), "plan.num_workers");
  EXPECT_EQ(refused(base, "/reduction", "sum"), "reduction");
  Json sum = base;
  sum["reduction"] = {{"sum", "sigmoid"}, {"bias", -1.0}};
  EXPECT_EQ(refused_field(sum), "accepted");
  EXPECT_EQ(refused(sum, "/return_lse", true), "return_lse");
  EXPECT_EQ(refused(sum, "/sink", {0, 0}), "sink");
  EXPECT_EQ(refused(base, "/variant", {{"source", "struct X {};"}, {"name", "1X"}}),
            "variant.name");
}

TEST(ParseProblem, CustomMasks) {
  Json base = mean_probe(3, 5, {{"kind", "custom"}});
  EXPECT_EQ(refused_field(base), "mask.custom");
  const Json row = {1, 0, 1, 0, 1};
  base["mask"]["custom"] = {{row, row, row}};
  EXPECT_EQ(refused_field(base), "accepted");
  EXPECT_EQ(refused(base, "/mask/custom", {{row, row}}), "mask.custom[0]");
  EXPECT_EQ(refused(base, "/mask/custom", {{row, row, {1, 0, 1}}}), "mask.custom[0][2]");
  EXPECT_EQ(refused(base, "/mask/custom/0/1/2", 2), "mask.custom[0][1][2]");
  EXPECT_EQ(refused(base, "/mask/packed", {1, 2}), "mask.custom");
  base["mask"].erase("custom");
  base["mask"]["packed"] = {255, 127};
  EXPECT_EQ(refused_field(base), "accepted");
  EXPECT_EQ(refused(base, "/mask/packed", {255}), "mask.packed");
  EXPECT_EQ(refused(base, "/mask/packed/1", 256), "mask.packed[1]");
}

TEST(ParseProblem, BlockSparse) {
  const Json base = bsr_example();
  EXPECT_EQ(refused(base, "/kv/block_rows", 3), "accepted");  // blocks of 3 and 1 rows
  EXPECT_EQ(refused(base, "/kv/block_rows", 4), "kv.indptr");
  EXPECT_EQ(refused(base, "/kv/block_rows", 0), "kv.block_rows");
  EXPECT_EQ(refused(base, "/kv/block_cols", {1, 2}), "kv.block_cols");
  EXPECT_EQ(refused(base, "/kv/indices", {2, 0, 1}), "kv.indices[1]");
  EXPECT_EQ(refused(base, "/kv/indices", {0, 3, 1}), "kv.indices[1]");
  EXPECT_EQ(refused(base, "/kv/indptr", {0, 2}), "kv.indptr");
  EXPECT_EQ(refused(base, "/kv/block_mask", Json::array()), "kv.block_mask");
  EXPECT_EQ(refused(base, "/kv/block_mask", {{{1}, {1}}, {{1, 1}, {1, 1}}, {{1, 1}, {1, 1}}}),
            "kv.block_mask[1][0]");
  EXPECT_EQ(refused(base, "/qo_indptr", {0, 2, 4}), "qo_indptr");
}

TEST(ParseProblem, Cascade) {
  const Json base = cascade_example();
  EXPECT_EQ(kv_len(parse_problem(base.dump(), nullptr), 0), 9);
  EXPECT_EQ(mask_columns(parse_problem(base.dump(), nullptr), 0), 4);
  EXPECT_EQ(refused(base, "/kv/levels/1/qo_indptr", {0, 1, 3}), "kv.levels[1].indptr");
  EXPECT_EQ(refused(base, "/kv/levels/0/qo_indptr", {0, 2}), "kv.levels[0].qo_indptr");
  EXPECT_EQ(refused(base, "/kv/levels/1/indices", {5, 2}), "kv.levels[1].indices[0]");
  EXPECT_EQ(refused(base, "/kv/levels", Json::array()), "kv.levels");
  EXPECT_EQ(refused(base, "/kv/indptr", {0}), "kv.indptr");
  Json uneven = base;
  uneven["qo_indptr"] = {0, 2, 2, 3};
  uneven["kv"]["levels"][1]["qo_indptr"] = {0, 2, 2, 3};
  uneven["kv"]["levels"][0] = {{"qo_indptr", {0, 1, 3}},
                               {"indptr", {0, 1, 2}},
                               {"indices", {5, 1}},
                               {"last_page_len", {1, 1}}};
  EXPECT_EQ(refused_field(uneven), "kv.levels[0].qo_indptr[1]");
}

TEST(ParseProblem, Selected) {
  const Json base = selected_example();
  EXPECT_EQ(kv_len(parse_problem(base.dump(), nullptr), 0), 13);
  EXPECT_EQ(refused(base, "/kv/positions", {0, 3, 4}), "kv.positions[1]");
  EXPECT_EQ(refused(base, "/kv/positions", {0, 4}), "kv.positions");
  EXPECT_EQ(refused(base, "/kv/positions", {0, 4, -1}), "kv.positions[2]");
  Json per_head = base;
  per_head["num_kv_heads"] = 2;
  per_head["kv"]["per_kv_head"] = true;
  per_head["kv"]["k_cache"]["shape"] = {8, 4, 2, 64};
  per_head["kv"]["v_cache"]["shape"] = {8, 4, 2, 64};
  per_head["kv"]["indptr"] = {0, 2, 3, 3, 3, 4, 5};
  per_head["kv"]["indices"] = {5, 1, 1, 7, 6};
  per_head["kv"]["last_page_len"] = {1, 1, 0, 0, 3, 3};
  per_head["kv"]["positions"] = {0, 12, 12, 4, 4};
  EXPECT_EQ(refused_field(per_head), "accepted");
  EXPECT_EQ(refused(per_head, "/kv/positions/2", 8), "kv.last_page_len[1]");
}

TEST(ParseProblem, NonFiniteNumbersNameTheirField) {
  const std::string text = paged_example().dump();
  const auto with = [&](const std::string& extra) {
    return refused_message(text.substr(0, text.size() - 1) + ", " + extra + "}");
  };
  EXPECT_EQ(with("\"sm_scale\": NaN"), "sm_scale: got \"NaN\", expected a finite number");
  EXPECT_EQ(with("\"k_scale\": Infinity"), "k_scale: got \"Infinity\", expected a finite number");
  EXPECT_EQ(with("\"v_scale\": 1e999"), "v_scale: got \"Infinity\", expected a finite number");
  EXPECT_EQ(with("\"v_scale\": 1e300"), "v_scale: got 1e+300, expected a finite number");
  EXPECT_EQ(with("\"alibi_slopes\": [0, -Infinity]"),
            "alibi_slopes[1]: got \"-Infinity\", expected a finite number");
  EXPECT_EQ(with("\"sink\": [0, -Infinity]"), "accepted");
  EXPECT_EQ(with("\"sink\": [0, NaN]"),
            "sink[1]: got \"NaN\", expected a finite number or -Infinity");
}

TEST(ParseProblem, MalformedText) {
  const std::string text = paged_example().dump();
  EXPECT_NE(refused_message("").find("an empty file"), std::string::npos);
  EXPECT_NE(refused_message(text.substr(0, text.size() / 2)).find("not JSON"), std::string::npos);
  EXPECT_NE(refused_message(text + "x").find("not JSON"), std::string::npos);
  EXPECT_NE(refused_message("[1, 2]").find("an object"), std::string::npos);
  EXPECT_NE(refused_message("{\"version\": 1, \"version\": 1}").find("\"version\" twice"),
            std::string::npos);
  EXPECT_NE(refused_message(std::string(100000, '[')).find("nested deeper"), std::string::npos);
  EXPECT_NE(refused_message("{\"version\": 123456789012345678901234567890}").find("version"),
            std::string::npos);
  EXPECT_EQ(refused_message("\xff\xfe").find('\n'), std::string::npos);
}

TEST(ParseProblem, TensorGenerators) {
  Json base = mean_probe(2, 3, {{"kind", "none"}});
  base["q"] = {{"data", Json::array({Json::array({Json::array()}), Json::array({Json::array()})})}};
  EXPECT_EQ(refused_field(base), "q");
  base = mean_probe(2, 3, {{"kind", "none"}}, 1, 2);
  base["q"] = {{"data", {{{1, 2}}, {{3, "NaN"}}}}};
  Problem problem = parse_problem(base.dump(), nullptr);
  EXPECT_EQ(problem.q.load(2), 3.0);
  EXPECT_TRUE(std::isnan(problem.q.load(3)));
  EXPECT_EQ(refused(base, "/q/data/1/0", Json{3}), "q.data[1][0]");
  EXPECT_EQ(refused(base, "/q/data/1/0/1", "x"), "q.data[1][0][1]");
  EXPECT_EQ(refused(base, "/q/fill", "ones"), "q");
  EXPECT_EQ(refused(base, "/q", generated({2, 1, 2}, {{"index", 3}})), "q.fill.index");
  EXPECT_EQ(refused(base, "/q", generated({2, 1, 2}, {{"normal", -1}})), "q.fill.normal");
  EXPECT_EQ(refused(base, "/q", generated({2, 1, 2}, "sevens")), "q.fill");
  EXPECT_EQ(refused(base, "/q", generated({2, 1, 3}, "ones")), "q");
  EXPECT_EQ(refused(base, "/kv/k", generated({std::int64_t{1} << 50, 1, 2}, "ones")),
            "kv.k.shape[0]");
  EXPECT_EQ(refused(base, "/kv/k", generated({std::int64_t{1} << 45, 1, 2}, "ones")), "kv.k");
  EXPECT_EQ(refused(base, "/q", {{"name", "q"}}), "q.name");

  // Strided generators keep the values by logical index and put NaN between them.
  base["kv"]["v"] = {
      {"shape", {3, 1, 2}}, {"fill", {{"index", 0}}}, {"stride", {5, 2, 1}}, {"offset", 1}};
  problem = parse_problem(base.dump(), nullptr);
  const std::int64_t index[] = {2, 0, 1};
  EXPECT_EQ(problem.v.at(index), 12);
  EXPECT_EQ(problem.v.load(12), 2.0);
  EXPECT_TRUE(std::isnan(problem.v.load(3)));
}

TEST(ParseProblem, OneCacheTensorAndViewOf) {
  Json base = paged_example();
  base["kv"].erase("k_cache");
  base["kv"].erase("v_cache");
  base["kv"]["kv_cache"] = generated({8, 2, 4, 1, 64}, {{"index", 1}});
  Problem problem = parse_problem(base.dump(), nullptr);
  EXPECT_EQ(problem.k.storage, problem.v.storage);
  EXPECT_EQ(problem.k.load(problem.k.offset), 0.0);
  EXPECT_EQ(problem.v.load(problem.v.offset), 1.0);

  base = paged_example();
  base["head_dim_vo"] = 32;
  base["kv"]["v_cache"] = {
      {"view_of", "k_cache"}, {"shape", {8, 4, 1, 32}}, {"stride", {256, 64, 64, 1}}};
  problem = parse_problem(base.dump(), nullptr);
  EXPECT_EQ(problem.k.storage, problem.v.storage);
  EXPECT_EQ(refused(base, "/kv/v_cache/stride", {256, 64, 64, 9}), "kv.v_cache");
  EXPECT_EQ(refused(base, "/kv/v_cache/view_of", "q"), "kv.v_cache.view_of");
  EXPECT_EQ(refused(base, "/q", {{"view_of", "k_cache"}}), "q.view_of");
}

}  // namespace
}  // namespace plait::oracle
