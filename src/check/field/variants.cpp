// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Logits, soft cap, sink, scales, precision, rope, user variants.
#include <cmath>
#include <limits>

#include "check/field/cases.h"

namespace plait::check::field {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One-head problem of literal rows: q and k have the value in their first element.
Json literal(const std::vector<double>& q, const std::vector<double>& k,
             const std::vector<double>& v, std::int64_t dim) {
  const auto rows = [dim](const std::vector<double>& values, bool all) {
    Json out = Json::array();
    for (double value : values) {
      std::vector<double> row(static_cast<std::size_t>(dim), all ? value : 0.0);
      row[0] = value;
      out.push_back(Json::array({row}));
    }
    return Json{{"data", out}};
  };
  Json document = ragged({{static_cast<std::int64_t>(q.size())},
                          {static_cast<std::int64_t>(k.size())},
                          1,
                          1,
                          dim,
                          dim,
                          1,
                          "f32",
                          "f32"});
  document["q"] = rows(q, false);
  document["kv"]["k"] = rows(k, false);
  document["kv"]["v"] = rows(v, true);
  return document;
}

void finite_minus_infinity(const FieldRun& run) {
  const double score = -524288 / std::sqrt(128.0);
  RunResult result = run.run(literal({1024}, {-512}, {1}, 128));
  run.expect_o(result, 0, 0, 1, 1e-6, "one very negative key");
  run.expect_lse(result, 0, 0, score, 0.01, "one very negative key");
  result = run.run(literal({1024}, {-512, -512}, {1, 3}, 128));
  run.expect_o(result, 0, 0, 2, 1e-6, "two equal keys");
  run.expect_lse(result, 0, 0, score + std::log(2.0), 0.01, "two equal keys");
  // Two rows: for the first one the second key lies in the future, with a raw score of +1e5.
  Json masked = literal({1024, 1024}, {-512, 97.65625}, {1, 5}, 128);
  masked["mask"] = {{"kind", "causal"}};
  result = run.run(masked);
  run.expect_o(result, 0, 0, 1, 1e-6, "the masked key has no effect");
  run.expect_lse(result, 0, 0, score, 0.01, "the masked key has no effect");
  run.expect_o(result, 1, 0, 5, 1e-6, "the visible one has");
}

void softcap_before_mask(const FieldRun& run) {
  Json document = literal({0, 0}, {0, 0}, {0, 1}, 64);
  document["mask"] = {{"kind", "causal"}};
  document["logits_soft_cap"] = 1.0;
  run.expect_o(run.run(document), 0, 0, 0, 0, "a masked key under cap 1");
  // The cap applies to scaled scores: 8 * 0.5 = 4 under cap 2; cap 0 is off.
  Json two = literal({4}, {2, 0}, {1, 0}, 64);
  two["sm_scale"] = 0.5;
  for (double cap : {2.0, 0.0}) {
    two["logits_soft_cap"] = cap;
    const double score = cap > 0 ? cap * std::tanh(4.0 / cap) : 4.0;
    const double weight = std::exp(score) / (std::exp(score) + 1);
    run.expect_o(run.run(two), 0, 0, weight, 1e-5, "cap of scaled scores");
    run.expect_lse(run.run(two), 0, 0, std::log(std::exp(score) + 1), 1e-5, "cap");
  }
}

void options_are_never_dropped(const FieldRun& run) {
  // Scores within +-12: a dropped cap, window or scale moves the answer far.
  Json document = paged({{3}, {24}, 2, 1, 64, 64, 4});
  fill(document["q"], {{"const", 1.0}});
  document["mask"] = {{"kind", "causal"}};
  document["sm_scale"] = 0.5;
  document["logits_soft_cap"] = 5.0;
  run.run_right(document, "cap 5");
  document["mask"]["window_left"] = 3;
  run.run_right(document, "cap 5, window 3");
  document["sm_scale"] = 0.03;
  run.run_right(document, "another scale");
  document["sm_scale"] = 0.0;
  run.run_right(document, "scale 0 is a scale, not a default");
  // Without a cap too, where a kernel may scale what it has hidden already.
  Json plain = paged({{40, 1}, {60, 33}, 4, 2, 128, 128, 16, "bf16", "bf16"});
  plain["mask"] = {{"kind", "causal"}};
  for (double scale : {0.0, 1e-44, -0.1}) {
    plain["sm_scale"] = scale;
    run.run_right(plain, "sm_scale " + std::to_string(scale));
  }
}

void attention_sink(const FieldRun& run) {
  Json document = paged({{1, 1}, {4, 0}, 1, 1, 64, 64, 2});
  fill(document["q"], "zeros");
  fill(document["kv"]["v_cache"], "ones");
  for (const char* policy : {"unsplit", "fixed_chunk"}) {
    document["plan"] = {{"policy", policy}, {"num_workers", 2}};
    if (std::string(policy) == "fixed_chunk") document["plan"]["kv_chunk"] = 2;
    const auto with = [&](Json sink) {
      document["sink"] = Json::array({std::move(sink)});
      return run.run(document);
    };
    RunResult result = with(0.0);
    run.expect_o(result, 0, 0, 0.8, 1e-6, "sink 0 counts once");
    run.expect_lse(result, 0, 0, std::log(4.0), 1e-6, "lse is without the sink");
    run.expect_o(result, 1, 0, 0, 0, "a row without keys");
    run.expect_lse(result, 1, 0, -kInfinity, 0, "a row without keys");
    run.expect_o(with("-Infinity"), 0, 0, 1, 1e-6, "sink -inf is no sink");
    run.expect_o(with(1e4), 0, 0, 0, 0, "a huge sink");
    // A state is before the sink.
    document["state"] = true;
    run.expect_o(with(0.0), 0, 0, 1, 1e-6, "state");
    document.erase("state");
  }
}

void fp8_scales(const FieldRun& run) {
  for (const char* kv : {"f8_e4m3", "f8_e5m2"}) {
    Json document = paged({{2}, {7}, 4, 2, 64, 64, 4, "bf16", "f32"});
    document["dtype"]["kv"] = kv;
    document["k_scale"] = 0.25;
    document["v_scale"] = 0.5;
    run.run_right(document, kv);
    Json zero = document;
    fill(zero["q"], "zeros");
    fill(zero["kv"]["v_cache"], "ones");
    run.expect_o(run.run(zero), 0, 0, 0.5, 1e-6, "v_scale alone");
    Json two = literal({8}, {16, 0}, {1, 0}, 64);
    two["dtype"] = {{"q", "bf16"}, {"kv", kv}, {"o", "f32"}};
    two["k_scale"] = 0.25;
    const double score = 8 * 16 * 0.25 / 8;  // 4
    run.expect_o(run.run(two), 0, 0, std::exp(score) / (std::exp(score) + 1), 2e-3,
                 "k_scale alone");
    run.expect_lse(run.run(two), 0, 0, std::log(std::exp(score) + 1), 1e-4, "k_scale alone");
    // One scale per KV head.
    document["k_scale"] = {0.25, 0.5};
    document["v_scale"] = {2.0, 0.5};
    run.run_right(document, "scales per head");
  }
}

void half_precision_accumulation(const FieldRun& run) {
  for (std::int64_t keys : {std::int64_t{300}, std::int64_t{65536}}) {
    Json document = paged({{1}, {keys}, 1, 1, 128, 128, 64, "f16", "f32"});
    fill(document["q"], {{"const", 32}});
    fill(document["kv"]["k_cache"], {{"const", 32}});
    fill(document["kv"]["v_cache"], "ones");
    const RunResult result = run.run(document);
    run.expect_o(result, 0, 0, 1, 1e-4, "q.k = 131072");
    run.expect_lse(result, 0, 0, 131072 / std::sqrt(128.0) + std::log(keys), 0.01, "q.k = 131072");
  }
}

void rope_with_shared_prefix(const FieldRun& run) {
  Json document = paged({{2, 1}, {3, 1}, 4, 2, 64, 64, 4, "f16", "f32"});
  document["rope"] = {{"kind", "half"}};
  document["mask"] = {{"kind", "causal"}};
  Json last = document["kv"];
  for (const char* key : {"kind", "page_size", "k_cache", "v_cache"}) last.erase(key);
  last["qo_indptr"] = document["qo_indptr"];
  Json prefix = {
      {"qo_indptr", {0, 3}}, {"indptr", {0, 2}}, {"indices", {2, 3}}, {"last_page_len", {1}}};
  Json k = document["kv"]["k_cache"];
  Json v = document["kv"]["v_cache"];
  k["shape"][0] = 4;
  v["shape"][0] = 4;
  document["kv"] = {{"kind", "cascade"},
                    {"page_size", 4},
                    {"k_cache", k},
                    {"v_cache", v},
                    {"levels", {prefix, last}}};
  for (const char* kind : {"half", "interleaved"}) {
    document["rope"]["kind"] = kind;
    run.run_right(document, "position = prefix + local index");
    // The same written out as explicit positions.
    Json explicit_positions = document;
    explicit_positions["rope"]["q_positions"] = {{6, 7}, {5}};
    explicit_positions["rope"]["k_positions"] = {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5}};
    run.run_right(explicit_positions, "explicit positions");
  }
}

void rope_far_away(const FieldRun& run) {
  // Angles stay accurate at position 2^20: relative position decides.
  Json document = ragged({{1}, {4}, 1, 1, 128, 128, 1, "f32", "f32"});
  const std::int64_t far = 1 << 20;
  document["rope"] = {{"kind", "half"},
                      {"theta", 500000.0},
                      {"q_positions", {{far}}},
                      {"k_positions", {{far, far - 1, far - 17, 0}}}};
  run.run_right(document, "position 2^20");
}

constexpr const char* kTemperedSource =
    "struct Tempered : plait::device::VariantBase {\n"
    "  static constexpr bool kHasLogits = true;\n"
    "  template <class T, class Params>\n"
    "  PLAIT_HD static T logits(T s, const plait::device::LogitSite<T>&, const Params& p) {\n"
    "    return s * p.temperature;\n"
    "  }\n"
    "};\n";
constexpr const char* kShiftedSource =
    "struct Tempered : plait::device::VariantBase {\n"
    "  static constexpr bool kHasOutput = true;\n"
    "  template <class T, class Params>\n"
    "  PLAIT_HD static T output(T x, const plait::device::VectorSite&, const Params& p) {\n"
    "    return x + p.temperature;\n"
    "  }\n"
    "};\n";

void same_name_two_sources(const FieldRun& run) {
  Json plain = paged({{2, 1}, {9, 5}, 4, 2, 64, 64, 4, "f16", "f32"});
  plain["sm_scale"] = 0.25;
  const RunResult scaled = run.run_right(plain, "sm_scale 0.25");
  Json tempered = plain;
  tempered["sm_scale"] = 0.125;
  tempered["variant"] = {
      {"source", kTemperedSource}, {"name", "Tempered"}, {"params", {{"temperature", 2.0}}}};
  const RunResult by_variant = run.run(tempered);
  Json shifted = plain;
  shifted["variant"] = {
      {"source", kShiftedSource}, {"name", "Tempered"}, {"params", {{"temperature", 100.0}}}};
  const RunResult other = run.run(shifted);
  for (std::int64_t n = 0; n < scaled.o.size(); ++n) {
    run.expect_near(by_variant.o.load(n), scaled.o.load(n), 1e-4, "logits hook");
    run.expect_near(other.o.load(n), scaled.o.load(n) + 100, 1e-3, "output hook of the same name");
  }
  // A changed parameter is not a stale kernel's constant.
  tempered["sm_scale"] = 0.25;
  tempered["variant"]["params"]["temperature"] = 1.0;
  const RunResult again = run.run(tempered);
  for (std::int64_t n = 0; n < scaled.o.size(); ++n) {
    run.expect_near(again.o.load(n), scaled.o.load(n), 1e-4, "another parameter");
  }
  Json broken = plain;
  broken["variant"] = {{"source", "struct Tempered { this is not C++ };"}, {"name", "Tempered"}};
  run.expect_refused(broken, "variant");
}

constexpr FieldCase kCases[] = {
    {5, "finite_minus_infinity", finite_minus_infinity},
    {20, "soft_cap_before_mask", softcap_before_mask},
    {21, "options_are_never_dropped", options_are_never_dropped},
    {22, "attention_sink", attention_sink},
    {23, "fp8_scales", fp8_scales},
    {24, "half_precision_accumulation", half_precision_accumulation},
    {32, "same_name_two_sources", same_name_two_sources},
    {38, "rope_with_shared_prefix", rope_with_shared_prefix},
    {38, "rope_at_position_2_to_20", rope_far_away},
};

}  // namespace

std::span<const FieldCase> variant_cases() { return kCases; }

}  // namespace plait::check::field
