// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "oracle/parse_problem.h"

#include <cmath>
#include <limits>

#include "oracle/parse_internal.h"

namespace plait::oracle {
namespace {

DType parse_float_dtype(const Node& node) {
  constexpr std::string_view kExpected = "one of f32, f16, bf16, f8_e4m3, f8_e5m2";
  const std::string& name = node.string(kExpected);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
    if (to_string(dtype) == name) return dtype;
  }
  node.refuse(kExpected);
}

void parse_heads(const Node& root, Problem& problem) {
  constexpr std::int64_t kMaxHeads = 65536;
  problem.num_qo_heads = root.get("num_qo_heads").integer(1, kMaxHeads);
  problem.num_kv_heads = root.get("num_kv_heads").integer(1, kMaxHeads);
  if (problem.num_qo_heads % problem.num_kv_heads != 0) {
    root.get("num_qo_heads")
        .refuse("a multiple of num_kv_heads, " + std::to_string(problem.num_kv_heads));
  }
  problem.head_dim_qk = root.get("head_dim_qk").integer(1, 576);
  problem.head_dim_vo = root.get("head_dim_vo").integer(1, 512);
}

// One finite f32-representable number per query head; -Infinity too where it has a meaning.
std::vector<double> per_head(const Node& node, std::int64_t heads, bool allow_minus_infinity) {
  const std::string expected = std::to_string(heads) + " numbers, one per query head";
  if (node.length(expected) != static_cast<std::size_t>(heads)) {
    throw Error(ErrorCode::kInvalidArgument, node.path(),
                std::to_string(node.json().size()) + " numbers", expected);
  }
  std::vector<double> out;
  for (std::size_t h = 0; h < static_cast<std::size_t>(heads); ++h) {
    const Node item = node.element(h);
    const double value = item.any_number();
    const bool minus_infinity = value == -std::numeric_limits<double>::infinity();
    const bool finite = std::isfinite(static_cast<float>(value));
    if (!finite && !(allow_minus_infinity && minus_infinity)) {
      item.refuse(allow_minus_infinity ? "a finite number or -Infinity" : "a finite number");
    }
    out.push_back(value);
  }
  return out;
}

double finite_f32(const Node& node) {
  const double value = node.any_number();
  if (!std::isfinite(static_cast<float>(value))) node.refuse("a finite number");
  return value;
}

std::vector<double> parse_scale(const Node& node, std::int64_t kv_heads) {
  if (!node.json().is_array()) return {finite_f32(node)};
  if (node.json().size() != static_cast<std::size_t>(kv_heads)) {
    node.refuse("a number, or " + std::to_string(kv_heads) + " numbers, one per KV head");
  }
  std::vector<double> out;
  for (std::size_t h = 0; h < node.json().size(); ++h) out.push_back(finite_f32(node.element(h)));
  return out;
}

void parse_reduction(const Node& node, Problem& problem) {
  if (node.json().is_string()) {
    if (node.string() != "softmax") {
      node.refuse("\"softmax\" or {\"sum\": \"sigmoid\", \"bias\": b}");
    }
    return;
  }
  node.expect_object({"sum", "bias"});
  const Node sum = node.get("sum");
  const bool own = !problem.variant.name.empty() && sum.string() == problem.variant.name;
  if (sum.string() != "sigmoid" && !own) {
    sum.refuse("\"sigmoid\", or the name of the problem's variant");
  }
  if (own && node.has("bias")) node.get("bias").refuse("no bias with a variant's own sum");
  if (!own && !problem.variant.name.empty()) {
    sum.refuse("the name of the problem's variant, which brings its own weights");
  }
  problem.sum_sigmoid = true;
  if (node.has("bias")) problem.sigmoid_bias = finite_f32(node.get("bias"));
}

void parse_flags(const Node& root, Problem& problem) {
  if (root.has("return_lse")) problem.return_lse = root.get("return_lse").boolean();
  if (root.has("state")) problem.state = root.get("state").boolean();
  if (!problem.sum_sigmoid) return;
  if (problem.return_lse) {
    root.get("return_lse").refuse("false: a sum reduction has no lse");
  }
  if (root.has("sink")) root.get("sink").refuse("no sink with a sum reduction");
}

}  // namespace

Problem problem_from_json(const Json& document, const Safetensors* tensors) {
  const Node root(document, "");
  root.expect_object({"version",
                      "num_qo_heads",
                      "num_kv_heads",
                      "head_dim_qk",
                      "head_dim_vo",
                      "dtype",
                      "layout",
                      "q",
                      "qo_indptr",
                      "kv",
                      "mask",
                      "sm_scale",
                      "logits_soft_cap",
                      "alibi_slopes",
                      "sink",
                      "k_scale",
                      "v_scale",
                      "rope",
                      "reduction",
                      "variant",
                      "plan",
                      "return_lse",
                      "state"});
  root.get("version").integer(1, 1);
  Problem problem;
  parse_heads(root, problem);
  const Node dtype = root.get("dtype");
  dtype.expect_object({"q", "kv", "o"});
  problem.q_dtype = parse_float_dtype(dtype.get("q"));
  problem.kv_dtype = parse_float_dtype(dtype.get("kv"));
  problem.o_dtype = parse_float_dtype(dtype.get("o"));
  if (root.has("layout")) {
    const Node layout = root.get("layout");
    const std::string& name = layout.string();
    if (name != "NHD" && name != "HND") layout.refuse("\"NHD\" or \"HND\"");
    problem.hnd = name == "HND";
  }
  problem.qo_indptr = parse_indptr(root.get("qo_indptr"), -1, "request");

  TensorResolver resolver(tensors);
  problem.q = resolver.resolve(root.get("q"), problem.q_dtype,
                               {problem.total_q(), problem.num_qo_heads, problem.head_dim_qk});
  parse_kv(root.get("kv"), resolver, problem);
  problem.names_tensors = resolver.used_file();
  if (root.has("mask")) parse_mask(root.get("mask"), problem);

  problem.sm_scale = 1.0 / std::sqrt(static_cast<double>(problem.head_dim_qk));
  if (root.has("sm_scale")) problem.sm_scale = finite_f32(root.get("sm_scale"));
  if (root.has("logits_soft_cap")) {
    const Node cap = root.get("logits_soft_cap");
    problem.logits_soft_cap = finite_f32(cap);
    if (problem.logits_soft_cap < 0) cap.refuse("0 (off) or a positive number");
  }
  if (root.has("alibi_slopes")) {
    problem.alibi_slopes = per_head(root.get("alibi_slopes"), problem.num_qo_heads, false);
  }
  if (root.has("sink")) problem.sink = per_head(root.get("sink"), problem.num_qo_heads, true);
  if (root.has("k_scale")) {
    problem.k_scale = parse_scale(root.get("k_scale"), problem.num_kv_heads);
  }
  if (root.has("v_scale")) {
    problem.v_scale = parse_scale(root.get("v_scale"), problem.num_kv_heads);
  }
  if (root.has("rope")) parse_rope(root.get("rope"), problem);
  if (root.has("variant")) parse_variant(root.get("variant"), problem);
  if (root.has("reduction")) parse_reduction(root.get("reduction"), problem);
  if (root.has("plan")) parse_plan(root.get("plan"), problem);
  parse_flags(root, problem);
  return problem;
}

Problem parse_problem(std::string_view text, const Safetensors* tensors) {
  const Json document = parse_strict_json(text, "problem");
  if (!document.is_object()) Node(document, "problem").refuse("an object");
  return problem_from_json(document, tensors);
}

}  // namespace plait::oracle
