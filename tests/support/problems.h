// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Small problems for tests, as JSON: the same text that `plait eval` reads.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "oracle/parse_problem.h"
#include "plait/error.h"

namespace plait::test {

using Json = nlohmann::json;

inline Json generated(Json shape, Json fill) {
  return {{"shape", std::move(shape)}, {"fill", std::move(fill)}};
}
inline Json normal(std::int64_t seed) { return {{"normal", seed}}; }

/// The example of EVAL.md in spirit: three requests over eight pages, the second one empty.
inline Json paged_example() {
  return {{"version", 1},
          {"num_qo_heads", 2},
          {"num_kv_heads", 1},
          {"head_dim_qk", 64},
          {"head_dim_vo", 64},
          {"dtype", {{"q", "bf16"}, {"kv", "bf16"}, {"o", "bf16"}}},
          {"q", generated({3, 2, 64}, normal(1))},
          {"qo_indptr", {0, 1, 2, 3}},
          {"kv",
           {{"kind", "paged"},
            {"page_size", 4},
            {"indptr", {0, 2, 2, 3}},
            {"indices", {5, 1, 7}},
            {"last_page_len", {1, 0, 3}},
            {"k_cache", generated({8, 4, 1, 64}, normal(2))},
            {"v_cache", generated({8, 4, 1, 64}, normal(3))}}}};
}

/// One request of `qo` rows over `kv` contiguous keys, q = 0 and v[j] = j: attention is the mean
/// of the visible positions, lse the logarithm of their number.
inline Json mean_probe(std::int64_t qo, std::int64_t kv, Json mask, std::int64_t heads = 1,
                       std::int64_t dim = 64) {
  return {{"version", 1},
          {"num_qo_heads", heads},
          {"num_kv_heads", heads},
          {"head_dim_qk", dim},
          {"head_dim_vo", dim},
          {"dtype", {{"q", "f16"}, {"kv", "f16"}, {"o", "f32"}}},
          {"q", generated({qo, heads, dim}, "zeros")},
          {"qo_indptr", {0, qo}},
          {"kv",
           {{"kind", "ragged"},
            {"indptr", {0, kv}},
            {"k", generated({kv, heads, dim}, normal(5))},
            {"v", generated({kv, heads, dim}, {{"index", 0}})}}},
          {"mask", std::move(mask)},
          {"return_lse", true}};
}

/// What a refusal says, or "accepted".
inline std::string refused_field(const Json& document,
                                 const oracle::Safetensors* tensors = nullptr) {
  try {
    oracle::parse_problem(document.dump(), tensors);
  } catch (const Error& error) {
    return error.field();
  }
  return "accepted";
}
inline std::string refused_message(std::string_view text) {
  try {
    oracle::parse_problem(text, nullptr);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace plait::test
