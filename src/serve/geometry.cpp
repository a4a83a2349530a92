// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/geometry.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/text.h"
#include "plait/error.h"

namespace plait::serve {
namespace {

// One row per model, from the published config.json of each. `window` counts keys as the
// configurations do (sliding_window); `window_layers` of the `layers` have it.
struct Row {
  const char* name;
  std::int32_t layers, qo_heads, kv_heads, head_dim;
  std::int32_t window, window_layers;
  double soft_cap;
  double query_scale_dim;  // sm_scale = 1/sqrt(this); 0: head_dim
  double rope_theta;
  double rope_factor;  // Llama-3.1 scaling; 0: none
};

constexpr Row kRows[] = {
    {"tiny", 1, 2, 1, 64, 0, 0, 0, 0, 10000, 0},
    {"llama-3.1-8b", 32, 32, 8, 128, 0, 0, 0, 0, 500000, 8},
    {"llama-3.1-70b", 80, 64, 8, 128, 0, 0, 0, 0, 500000, 8},
    {"llama-3.2-1b", 16, 32, 8, 64, 0, 0, 0, 0, 500000, 32},
    {"llama-2-7b", 32, 32, 32, 128, 0, 0, 0, 0, 10000, 0},
    {"qwen2.5-7b", 28, 28, 4, 128, 0, 0, 0, 0, 1000000, 0},
    {"qwen3-8b", 36, 32, 8, 128, 0, 0, 0, 0, 1000000, 0},
    {"mistral-7b-v0.1", 32, 32, 8, 128, 4096, 32, 0, 0, 10000, 0},
    {"phi-3-mini", 32, 32, 32, 96, 0, 0, 0, 0, 10000, 0},
    {"gemma-2-9b", 42, 16, 8, 256, 4096, 21, 50, 256, 10000, 0},
    {"gemma-2-27b", 46, 32, 16, 128, 4096, 23, 50, 144, 10000, 0},
};

Geometry from_row(const Row& row) {
  Geometry geometry;
  geometry.name = row.name;
  geometry.num_qo_heads = row.qo_heads;
  geometry.num_kv_heads = row.kv_heads;
  geometry.head_dim = row.head_dim;
  if (row.query_scale_dim > 0) geometry.sm_scale = 1.0 / std::sqrt(row.query_scale_dim);
  geometry.logits_soft_cap = row.soft_cap;
  geometry.rope.kind = RopeKind::kHalf;
  geometry.rope.theta = row.rope_theta;
  if (row.rope_factor > 0) {
    geometry.rope.scaling = RopeScalingKind::kLlama31;
    geometry.rope.factor = row.rope_factor;
  }
  if (row.layers > row.window_layers)
    geometry.groups.push_back({row.layers - row.window_layers, -1});
  if (row.window_layers > 0) geometry.groups.push_back({row.window_layers, row.window - 1});
  return geometry;
}

[[noreturn]] void refuse(std::string_view field, std::string_view value, std::string expected) {
  throw Error(ErrorCode::kInvalidArgument,
              "geometry" + (field.empty() ? "" : "." + std::string(field)), quote_text(value),
              std::move(expected));
}

/// Whether all of `text` is a number, which then is *value.
template <typename T>
bool is_number(std::string_view text, T* value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return result.ec == std::errc() && result.ptr == end;
}

template <typename T>
T number(std::string_view key, std::string_view text, T low, T high) {
  T value{};
  if (!is_number(text, &value) || !(value >= low && value <= high)) {
    refuse(key, text, fmt::format("a number in {}..{}", low, high));
  }
  return value;
}

double positive_number(std::string_view key, std::string_view text) {
  double value = 0;
  if (!is_number(text, &value) || !(value > 0) || std::isinf(value)) {
    refuse(key, text, "a positive number");
  }
  return value;
}

Geometry parse_explicit(std::string_view text) {
  Row row{"", 0, 0, 0, 0, 0, -1, 0, 0, 10000, 0};
  std::optional<double> given_cap;
  std::optional<double> given_theta;
  std::string seen;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(item.size());
    if (!rest.empty()) {
      rest.remove_prefix(1);
      if (rest.empty()) refuse("", text, "key=value pairs without a trailing comma");
    }
    const std::size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view{} : item.substr(equals + 1);
    std::string mark(1, ',');
    mark.append(key).append(1, ',');
    if (seen.find(mark) != std::string::npos) refuse(key, value, "each key once");
    seen += mark;
    if (key == "layers") {
      row.layers = number(key, value, 1, 1024);
    } else if (key == "q") {
      row.qo_heads = number(key, value, 1, 1024);
    } else if (key == "kv") {
      row.kv_heads = number(key, value, 1, 1024);
    } else if (key == "dim") {
      row.head_dim = number(key, value, 1, 512);
    } else if (key == "window") {
      row.window = number(key, value, 1, 1 << 24);
    } else if (key == "window-layers") {
      row.window_layers = number(key, value, 1, 1024);
    } else if (key == "cap") {
      row.soft_cap = number(key, value, 0.0, 1e6);
      given_cap = row.soft_cap;
    } else if (key == "theta") {
      row.rope_theta = positive_number(key, value);
      given_theta = row.rope_theta;
    } else {
      refuse("key", item, "layers, q, kv, dim, window, window-layers, cap or theta");
    }
  }
  if (row.layers == 0) refuse("layers", text, "layers=N");
  if (row.qo_heads == 0) refuse("q", text, "q=N (query heads)");
  if (row.kv_heads == 0) refuse("kv", text, "kv=N (KV heads)");
  if (row.head_dim == 0) refuse("dim", text, "dim=N (head dim)");
  if (row.qo_heads % row.kv_heads != 0) {
    refuse("q", std::to_string(row.qo_heads),
           "a multiple of kv, which is " + std::to_string(row.kv_heads));
  }
  if (row.head_dim % 2 != 0) refuse("dim", std::to_string(row.head_dim), "an even number (RoPE)");
  if (row.window == 0 && row.window_layers >= 0) {
    refuse("window-layers", std::to_string(row.window_layers), "to come with window=N");
  }
  if (row.window_layers < 0) row.window_layers = row.window > 0 ? row.layers : 0;
  if (row.window_layers > row.layers) {
    refuse("window-layers", std::to_string(row.window_layers),
           "at most layers, which is " + std::to_string(row.layers));
  }
  Geometry geometry = from_row(row);
  geometry.name = std::string(text);
  geometry.given_cap = given_cap;
  geometry.given_theta = given_theta;
  try {
    validate_rope(geometry.rope, geometry.head_dim);
  } catch (const Error& error) {
    // All but theta are defaults.
    throw Error(error.code(), "geometry.theta", error.value(), error.expected());
  }
  return geometry;
}

}  // namespace

std::int32_t Geometry::num_layers() const noexcept {
  std::int32_t layers = 0;
  for (const LayerGroup& group : groups) layers += group.layers;
  return layers;
}

bool Geometry::sees_prefixes() const noexcept {
  return std::any_of(groups.begin(), groups.end(),
                     [](const LayerGroup& group) { return group.window_left < 0; });
}

std::int64_t Geometry::kv_bytes_per_token(DType dtype) const noexcept {
  return std::int64_t{2} * num_layers() * num_kv_heads * head_dim * size_of(dtype);
}

std::vector<std::string> known_geometries() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.emplace_back(row.name);
  return names;
}

Geometry parse_geometry(std::string_view text) {
  for (const Row& row : kRows) {
    if (text == row.name) return from_row(row);
  }
  if (text.find('=') != std::string_view::npos) return parse_explicit(text);
  std::string expected;
  for (const Row& row : kRows) expected += std::string(row.name) + ", ";
  refuse("", text, expected + "or " + kExplicitGeometry);
}

std::vector<AttentionSpec> attention_specs(const Geometry& geometry, std::int32_t page_size,
                                           DType kv_dtype, bool fused_rope) {
  std::vector<AttentionSpec> specs;
  for (const LayerGroup& group : geometry.groups) {
    AttentionSpec spec;
    spec.num_qo_heads = geometry.num_qo_heads;
    spec.num_kv_heads = geometry.num_kv_heads;
    spec.head_dim_qk = geometry.head_dim;
    spec.head_dim_vo = geometry.head_dim;
    // fp8 caches keep bf16 activations.
    const DType activation = size_of(kv_dtype) == 1 ? DType::kBF16 : kv_dtype;
    spec.q_dtype = activation;
    spec.kv_dtype = kv_dtype;
    spec.o_dtype = activation;
    spec.page_size = page_size;
    spec.mask = MaskKind::kCausal;
    spec.window_left = group.window_left;
    spec.sm_scale = geometry.sm_scale;
    spec.logits_soft_cap = geometry.logits_soft_cap;
    if (fused_rope) spec.rope = geometry.rope;
    specs.push_back(spec);
  }
  return specs;
}

}  // namespace plait::serve
