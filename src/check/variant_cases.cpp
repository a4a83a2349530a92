// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/variant_cases.h"

#include <cmath>
#include <exception>

#include "check/compare.h"
#include "check/generate.h"
#include "check/transforms.h"
#include "oracle/parse_problem.h"
#include "plait/error.h"

namespace plait::check {
namespace {

using Json = nlohmann::json;

// Every source declares one hook; names that differ only in their source must not share a kernel.
constexpr std::string_view kQuery =
    "struct Variant : plait::device::VariantBase {\n"
    "  static constexpr bool kHasQuery = true;\n"
    "  template <class T, class Params>\n"
    "  PLAIT_HD static T query(T x, const plait::device::VectorSite&, const Params& p) {\n"
    "    return x * p.factor;\n"
    "  }\n"
    "};\n";
constexpr std::string_view kKey =
    "struct Variant : plait::device::VariantBase {\n"
    "  static constexpr bool kHasKey = true;\n"
    "  template <class T, class Params>\n"
    "  PLAIT_HD static T key(T x, const plait::device::VectorSite& at, const Params& p) {\n"
    "    return x * p.factors[at.head];\n"
    "  }\n"
    "};\n";
constexpr std::string_view kLogits =
    "struct Variant : plait::device::VariantBase {\n"
    "  static constexpr bool kHasLogits = true;\n"
    "  template <class T, class Params>\n"
    "  PLAIT_HD static T logits(T s, const plait::device::LogitSite<T>& at, const Params& p) {\n"
    "    return s + p.slopes[at.qo_head] * static_cast<float>(at.kv_pos - at.q_pos);\n"
    "  }\n"
    "};\n";
constexpr std::string_view kMask =
    "struct Variant : plait::device::VariantBase {\n"
    "  static constexpr bool kHasMask = true;\n"
    "  template <class T, class Params>\n"
    "  PLAIT_HD static bool visible(const plait::device::LogitSite<T>& at, const Params& p) {\n"
    "    return at.distance >= -p.window;\n"
    "  }\n"
    "};\n";
constexpr std::string_view kWeight =
    "struct Variant : plait::device::VariantBase {\n"
    "  static constexpr plait::device::ReductionKind kReduction =\n"
    "      plait::device::ReductionKind::kSum;\n"
    "  template <class T, class Params>\n"
    "  PLAIT_HD static T weight(T s, const plait::device::LogitSite<T>&, const Params& p) {\n"
    "    return 1.0f / (1.0f + expf(-(s + p.bias)));\n"
    "  }\n"
    "};\n";
constexpr std::string_view kOutput =
    "struct Variant : plait::device::VariantBase {\n"
    "  static constexpr bool kHasOutput = true;\n"
    "  template <class T, class Params>\n"
    "  PLAIT_HD static T output(T x, const plait::device::VectorSite& at, const Params& p) {\n"
    "    return x * p.factors[at.head];\n"
    "  }\n"
    "};\n";

Json numbers(std::int64_t count, double first, double step) {
  Json out = Json::array();
  for (std::int64_t n = 0; n < count; ++n) out.push_back(first + step * static_cast<double>(n));
  return out;
}

std::int64_t heads(const Json& document, const char* key) {
  return document.at(key).get<std::int64_t>();
}

void apply_query(Json& built_in, Json& variant) {
  // A power of two, exact in every dtype a kernel may round q to.
  variant["sm_scale"] = 0.0625;
  built_in["sm_scale"] = 0.125;
  variant["variant"]["params"] = {{"factor", 2.0}};
}

void apply_key(Json& built_in, Json& variant) {
  variant.erase("k_scale");
  const std::int64_t count = heads(built_in, "num_kv_heads");
  Json factors = Json::array();
  for (std::int64_t h = 0; h < count; ++h)
    factors.push_back(std::ldexp(1.0, static_cast<int>(h % 3) - 1));
  built_in["k_scale"] = factors;
  variant["variant"]["params"] = {{"factors", factors}};
}

void apply_logits(Json& built_in, Json& variant) {
  variant.erase("alibi_slopes");
  const Json slopes = numbers(heads(built_in, "num_qo_heads"), 0.0625, 0.03125);
  built_in["alibi_slopes"] = slopes;
  variant["variant"]["params"] = {{"slopes", slopes}};
}

void apply_mask(Json& built_in, Json& variant) {
  variant["mask"].erase("window_left");
  built_in["mask"]["window_left"] = 9;
  variant["variant"]["params"] = {{"window", 9.0}};
}

void apply_weight(Json& built_in, Json& variant) {
  for (Json* document : {&built_in, &variant}) {
    document->erase("sink");
    document->erase("return_lse");
  }
  built_in["reduction"] = {{"sum", "sigmoid"}, {"bias", -1.5}};
  variant["reduction"] = {{"sum", "Variant"}};
  variant["variant"]["params"] = {{"bias", -1.5}};
}

void apply_output(Json& built_in, Json& variant) {
  variant.erase("v_scale");
  const std::int64_t kv_heads = heads(built_in, "num_kv_heads");
  const std::int64_t qo_heads = heads(built_in, "num_qo_heads");
  built_in["v_scale"] = numbers(kv_heads, 0.5, 0.25);
  Json factors = Json::array();
  for (std::int64_t h = 0; h < qo_heads; ++h) {
    const std::int64_t kv_head = h / (qo_heads / kv_heads);
    factors.push_back(0.5 + 0.25 * static_cast<double>(kv_head));
  }
  variant["variant"]["params"] = {{"factors", factors}};
}

constexpr VariantCase kCases[] = {
    {"query", kQuery, apply_query},    {"key", kKey, apply_key},
    {"logits", kLogits, apply_logits}, {"mask", kMask, apply_mask},
    {"weight", kWeight, apply_weight}, {"output", kOutput, apply_output},
};

}  // namespace

std::span<const VariantCase> variant_cases() { return kCases; }

VariantReport check_variant(const VariantCase& which, std::uint64_t seed, std::uint64_t index,
                            const RunOptions& options) {
  Json built_in = generate_problem(seed, index);
  built_in.erase("state");  // a state is before the output hook
  built_in.erase("reduction");
  built_in.erase("logits_soft_cap");
  Json variant = built_in;
  variant["variant"] = {{"source", which.source}, {"name", "Variant"}};
  which.apply(built_in, variant);
  VariantReport report;
  report.document = variant;
  try {
    oracle::Problem problem = oracle::problem_from_json(variant, nullptr);
    poison_unread(problem);
    const RunResult result = run_problem(problem, options);
    const Comparison comparison =
        compare_with_oracle(oracle::problem_from_json(built_in, nullptr), result);
    report.worst = comparison.worst;
    if (!comparison.ok) report.failure = comparison.message;
  } catch (const Error& error) {
    report.declined = error.code() == ErrorCode::kUnsupported;
    (report.declined ? report.declined_by : report.failure) = error.what();
  } catch (const std::exception& error) {
    report.failure = error.what();
  }
  return report;
}

}  // namespace plait::check
