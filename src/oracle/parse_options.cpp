// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// "mask", "rope", "variant" and "plan".
#include <cmath>

#include "oracle/parse_internal.h"

namespace plait::oracle {
namespace {

constexpr std::int64_t kMaxMaskBytes = std::int64_t{1} << 33;

std::size_t z(std::int64_t value) { return static_cast<std::size_t>(value); }

double positive(const Node& node) {
  const double value = node.number("a positive finite number");
  if (value <= 0) node.refuse("a positive finite number");
  return value;
}

void parse_custom_matrices(const Node& node, Problem& problem) {
  const std::int64_t requests = problem.num_requests();
  if (node.length("a list of 0/1 matrices, one per request") != z(requests)) {
    throw Error(ErrorCode::kInvalidArgument, node.path(),
                std::to_string(node.json().size()) + " matrices",
                std::to_string(requests) + ", one per request");
  }
  for (std::int64_t r = 0; r < requests; ++r) {
    const std::int64_t rows = problem.qo_len(r);
    const std::int64_t columns = rows == 0 ? 0 : mask_columns(problem, r);
    const std::string expected = "a [" + std::to_string(rows) + "][" + std::to_string(columns) +
                                 "] matrix (qo_len, kv_len) of 0 and 1";
    const Node matrix = node.element(z(r));
    if (matrix.length(expected) != z(rows)) {
      throw Error(ErrorCode::kInvalidArgument, matrix.path(),
                  std::to_string(matrix.json().size()) + " rows", expected);
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      const Node row = matrix.element(z(i));
      if (row.length(expected) != z(columns)) {
        throw Error(ErrorCode::kInvalidArgument, row.path(),
                    std::to_string(row.json().size()) + " columns", expected);
      }
      for (std::int64_t j = 0; j < columns; ++j) {
        if (row.element(z(j)).integer(0, 1) == 0) continue;
        const std::int64_t bit = i * columns + j;
        auto& byte = problem.mask_bytes[z(problem.mask_offsets[z(r)] + bit / 8)];
        byte = static_cast<std::uint8_t>(byte | 1 << (bit % 8));
      }
    }
  }
}

std::vector<Ints> parse_position_lists(const Node& node, const Problem& problem, bool keys) {
  const std::int64_t requests = problem.num_requests();
  if (node.length("a list of positions per request") != z(requests)) {
    throw Error(ErrorCode::kInvalidArgument, node.path(),
                std::to_string(node.json().size()) + " lists",
                std::to_string(requests) + ", one per request");
  }
  std::vector<Ints> out;
  std::int64_t spread_bytes = 0;
  for (std::int64_t r = 0; r < requests; ++r) {
    const Node list = node.element(z(r));
    Ints positions = list.integers(0, kMaxIndex);
    const std::int64_t length = keys ? kv_len(problem, r) : problem.qo_len(r);
    const bool listed_only = keys && problem.source == Source::kSelected && !problem.per_kv_head &&
                             static_cast<std::int64_t>(positions.size()) ==
                                 listed_tokens(problem, problem.levels.front(), r);
    if (listed_only) {
      // One position per token that is in the cache: spread them to their logical positions.
      // A few tokens may lie far apart.
      spread_bytes += length * std::int64_t{sizeof(std::int64_t)};
      require_memory(spread_bytes, list.path());
      const Level& level = problem.levels.front();
      Ints spread(z(length), 0);
      std::int64_t slot = 0;
      for (std::int64_t n = level.indptr[z(r)]; n < level.indptr[z(r + 1)]; ++n) {
        const bool last = n + 1 == level.indptr[z(r + 1)];
        const std::int64_t tokens = last ? level.last_page_len[z(r)] : problem.page_size;
        for (std::int64_t t = 0; t < tokens; ++t) {
          spread[z(level.positions[z(n)] + t)] = positions[z(slot++)];
        }
      }
      positions = std::move(spread);
    }
    if (static_cast<std::int64_t>(positions.size()) != length) {
      throw Error(
          ErrorCode::kInvalidArgument, list.path(), std::to_string(positions.size()) + " positions",
          std::to_string(length) + (keys ? ", the kv_len" : ", the qo_len") + " of the request");
    }
    out.push_back(std::move(positions));
  }
  return out;
}

void parse_scaling(const Node& node, RopeOptions& rope) {
  if (!node.json().is_object()) node.refuse("an object");
  const Node kind = node.get("kind");
  const std::string& name = kind.string();
  if (name == "linear") {
    node.expect_object({"kind", "factor"});
    rope.scaling = RopeScaling::kLinear;
  } else if (name == "llama3.1") {
    node.expect_object(
        {"kind", "factor", "low_freq_factor", "high_freq_factor", "original_max_position"});
    rope.scaling = RopeScaling::kLlama31;
  } else {
    kind.refuse("one of linear, llama3.1");
  }
  rope.factor = positive(node.get("factor"));
  if (node.has("low_freq_factor")) rope.low_freq_factor = positive(node.get("low_freq_factor"));
  if (node.has("high_freq_factor")) rope.high_freq_factor = positive(node.get("high_freq_factor"));
  if (node.has("original_max_position")) {
    rope.original_max_position = node.get("original_max_position").integer(1, kMaxIndex);
  }
  if (rope.scaling == RopeScaling::kLlama31 && rope.high_freq_factor <= rope.low_freq_factor) {
    throw Error(ErrorCode::kInvalidArgument, node.child_path("high_freq_factor"),
                Json(rope.high_freq_factor).dump(),
                "more than low_freq_factor, " + Json(rope.low_freq_factor).dump());
  }
}

}  // namespace

void parse_mask(const Node& node, Problem& problem) {
  if (!node.json().is_object()) node.refuse("an object");
  const Node kind = node.get("kind");
  const std::string& name = kind.string();
  if (node.has("window_left")) {
    problem.window_left = node.get("window_left").integer(-1, kMaxIndex);
  }
  if (name == "none" || name == "causal") {
    node.expect_object({"kind", "window_left"});
    problem.mask = name == "none" ? Mask::kNone : Mask::kCausal;
    return;
  }
  if (name != "custom") kind.refuse("one of none, causal, custom");
  node.expect_object({"kind", "window_left", "custom", "packed"});
  problem.mask = Mask::kCustom;
  problem.mask_offsets.push_back(0);
  for (std::int64_t r = 0; r < problem.num_requests(); ++r) {
    const std::int64_t rows = problem.qo_len(r);
    const std::int64_t columns = rows == 0 ? 0 : mask_columns(problem, r);
    const Int128 bytes = (static_cast<Int128>(rows) * columns + 7) / 8;
    if (problem.mask_offsets.back() + bytes > kMaxMaskBytes) {
      kind.refuse("a custom mask of at most 2^33 bytes");
    }
    problem.mask_offsets.push_back(problem.mask_offsets.back() + static_cast<std::int64_t>(bytes));
  }
  if (node.has("custom") == node.has("packed")) {
    throw Error(ErrorCode::kInvalidArgument, node.child_path("custom"),
                node.has("custom") ? "both custom and packed" : "nothing",
                "either custom or packed");
  }
  if (node.has("custom")) {
    // The matrices' own sizes are compared before anything of the computed size is kept.
    const Node matrices = node.get("custom");
    std::int64_t given = 0;
    if (matrices.json().is_array()) {
      for (const Json& matrix : matrices.json()) {
        if (!matrix.is_array()) continue;
        for (const Json& row : matrix) given += static_cast<std::int64_t>(row.size());
      }
    }
    if (problem.mask_offsets.back() <= given + problem.num_requests()) {
      problem.mask_bytes.assign(z(problem.mask_offsets.back()), 0);
    } else {
      problem.mask_bytes.assign(z(given + problem.num_requests()), 0);
    }
    parse_custom_matrices(matrices, problem);
    return;
  }
  const Node packed = node.get("packed");
  const Ints bytes = packed.integers(0, 255);
  if (static_cast<std::int64_t>(bytes.size()) != problem.mask_offsets.back()) {
    throw Error(
        ErrorCode::kInvalidArgument, packed.path(), std::to_string(bytes.size()) + " bytes",
        std::to_string(problem.mask_offsets.back()) + ", ceil(qo_len * kv_len / 8) per request");
  }
  for (std::int64_t byte : bytes) problem.mask_bytes.push_back(static_cast<std::uint8_t>(byte));
}

void parse_rope(const Node& node, Problem& problem) {
  node.expect_object({"kind", "theta", "rotary_dim", "scaling", "q_positions", "k_positions"});
  RopeOptions& rope = problem.rope;
  const Node kind = node.get("kind");
  const std::string& name = kind.string();
  if (name == "half") {
    rope.kind = Rope::kHalf;
  } else if (name == "interleaved") {
    rope.kind = Rope::kInterleaved;
  } else {
    kind.refuse("one of half, interleaved");
  }
  if (node.has("theta")) rope.theta = positive(node.get("theta"));
  rope.rotary_dim = problem.head_dim_qk;
  if (node.has("rotary_dim")) {
    rope.rotary_dim = node.get("rotary_dim").integer(2, problem.head_dim_qk);
  }
  if (rope.rotary_dim % 2 != 0) {
    throw Error(ErrorCode::kInvalidArgument, node.child_path("rotary_dim"),
                std::to_string(rope.rotary_dim), "an even number");
  }
  if (node.has("scaling")) parse_scaling(node.get("scaling"), rope);
  if (node.has("q_positions")) {
    rope.q_positions = parse_position_lists(node.get("q_positions"), problem, false);
  }
  if (node.has("k_positions")) {
    rope.k_positions = parse_position_lists(node.get("k_positions"), problem, true);
  }
}

void parse_variant(const Node& node, Problem& problem) {
  node.expect_object({"source", "name", "params"});
  VariantOption& variant = problem.variant;
  variant.source = node.get("source").string("the source text of the variant");
  if (variant.source.empty()) node.get("source").refuse("the source text of the variant");
  variant.name = node.get("name").string("the name of the variant's struct");
  const auto word = [](char c, bool first) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (!first && c >= '0' && c <= '9');
  };
  const auto identifier = [&](const std::string& text) {
    if (text.empty() || text.size() > 64) return false;
    for (std::size_t n = 0; n < text.size(); ++n) {
      if (!word(text[n], n == 0)) return false;
    }
    return true;
  };
  if (!identifier(variant.name)) node.get("name").refuse("a C++ identifier");
  if (!node.has("params")) return;
  const Node params = node.get("params");
  if (!params.json().is_object()) params.refuse("an object of numbers and lists of numbers");
  for (const auto& item : params.json().items()) {
    const Node value(item.value(), params.child_path(item.key()));
    if (!identifier(item.key())) value.refuse("a parameter whose name is a C++ identifier");
    VariantOption::Param param;
    param.name = item.key();
    param.is_array = value.json().is_array();
    if (param.is_array) {
      const std::size_t count = value.length("a list of numbers");
      for (std::size_t n = 0; n < count; ++n) param.values.push_back(value.element(n).number());
    } else {
      param.values.push_back(value.number("a number or a list of numbers"));
    }
    variant.params.push_back(std::move(param));
  }
}

void parse_plan(const Node& node, Problem& problem) {
  node.expect_object({"policy", "kv_chunk", "num_workers"});
  if (node.has("policy")) {
    const Node policy = node.get("policy");
    const std::string& name = policy.string();
    if (name == "throughput") {
      problem.policy = PolicyName::kThroughput;
    } else if (name == "batch_invariant") {
      problem.policy = PolicyName::kBatchInvariant;
    } else if (name == "fixed_chunk") {
      problem.policy = PolicyName::kFixedChunk;
    } else if (name == "unsplit") {
      problem.policy = PolicyName::kUnsplit;
    } else {
      policy.refuse("one of throughput, batch_invariant, fixed_chunk, unsplit");
    }
  }
  if (node.has("num_workers")) problem.num_workers = node.get("num_workers").integer(1, 1 << 16);
  const bool fixed = problem.policy == PolicyName::kFixedChunk;
  if (!fixed) {
    if (node.has("kv_chunk")) {
      node.get("kv_chunk").refuse("no kv_chunk unless policy is fixed_chunk");
    }
    return;
  }
  const Node chunk = node.get("kv_chunk");
  problem.kv_chunk = chunk.integer(1, kMaxIndex);
  if (problem.paged_storage() && problem.kv_chunk % problem.page_size != 0) {
    chunk.refuse("a multiple of page_size, " + std::to_string(problem.page_size));
  }
}

}  // namespace plait::oracle
