// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/spec.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/rope_frequency.h"
#include "plait/error.h"

namespace plait {
namespace {

std::string text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.9g", value);
  return buffer;
}
std::string text(std::int64_t value) { return std::to_string(value); }

[[noreturn]] void refuse(std::string field, std::string value, std::string expected) {
  throw Error(ErrorCode::kInvalidArgument, std::move(field), std::move(value), std::move(expected));
}

void check_range(const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  refuse(field, text(value), "an integer in [" + text(low) + ", " + text(high) + "]");
}

void check_finite(const char* field, double value) {
  if (!std::isfinite(value)) refuse(field, text(value), "a finite number");
}

/// Kernels compute in f32: a value beyond it would become infinity there.
void check_f32(const char* field, double value) {
  check_finite(field, value);
  if (std::fabs(value) > static_cast<double>(std::numeric_limits<float>::max())) {
    refuse(field, text(value), "a number that f32 holds");
  }
}

/// One of an enumeration's values: a number from elsewhere would pass for one that no kernel knows.
template <class Enum>
void check_choice(const char* field, Enum value, Enum last) {
  check_range(field, static_cast<std::int64_t>(value), 0, static_cast<std::int64_t>(last));
}

void check_float_dtype(const char* field, DType dtype) {
  if (is_float(dtype)) return;
  refuse(field, std::string(to_string(dtype)), "one of f32, f16, bf16, f8_e4m3, f8_e5m2");
}

bool is_identifier(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  for (char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (!letter && !(c >= '0' && c <= '9')) return false;
  }
  return true;
}

void validate_scaling(const RopeSpec& rope) {
  check_finite("rope.scaling.factor", rope.factor);
  const RopeSpec defaults;
  const bool llama31_defaults = rope.low_freq_factor == defaults.low_freq_factor &&
                                rope.high_freq_factor == defaults.high_freq_factor &&
                                rope.original_max_position == defaults.original_max_position;
  if (rope.scaling == RopeScalingKind::kNone) {
    if (rope.factor != defaults.factor || !llama31_defaults) {
      refuse("rope.scaling.kind", "none", "linear or llama3.1 when scaling options are set");
    }
    return;
  }
  if (rope.factor <= 0.0) refuse("rope.scaling.factor", text(rope.factor), "a positive number");
  if (rope.scaling == RopeScalingKind::kLinear) {
    if (!llama31_defaults) {
      refuse("rope.scaling.kind", "linear", "llama3.1 when its options are set");
    }
    return;
  }
  check_finite("rope.scaling.low_freq_factor", rope.low_freq_factor);
  check_finite("rope.scaling.high_freq_factor", rope.high_freq_factor);
  if (rope.low_freq_factor <= 0.0) {
    refuse("rope.scaling.low_freq_factor", text(rope.low_freq_factor), "a positive number");
  }
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    refuse("rope.scaling.high_freq_factor", text(rope.high_freq_factor),
           "more than low_freq_factor = " + text(rope.low_freq_factor));
  }
  check_range("rope.scaling.original_max_position", rope.original_max_position, 1,
              std::int64_t{1} << 40);
}

/// A model turns by at most one radian per position. Far beyond, angles have no meaning any more,
/// and a GPU, which counts turns in f32, could not keep the promised accuracy up to position 2^20.
/// What counts is what scaling leaves: that is all that a backend gets to see.
void check_frequencies(const RopeSpec& rope, std::int32_t head_dim) {
  constexpr double kFastest = 64.0;
  const auto too_fast = [&](const RopeSpec& of) {
    const std::vector<double> frequencies = rope_frequencies(of, head_dim);
    return !std::all_of(frequencies.begin(), frequencies.end(),
                        [](double frequency) { return frequency <= kFastest; });
  };
  constexpr const char* kExpected = "one that turns no pair by more than 64 radians per position";
  // Other values slow all pairs down.
  if ((rope.theta >= 1.0 && rope.factor >= 1.0) || !too_fast(rope)) return;
  RopeSpec unscaled = rope;
  unscaled.scaling = RopeScalingKind::kNone;
  if (too_fast(unscaled)) refuse("rope.theta", text(rope.theta), kExpected);
  refuse("rope.scaling.factor", text(rope.factor), kExpected);
}

}  // namespace

void validate_rope(const RopeSpec& rope, std::int32_t head_dim) {
  check_choice("rope.kind", rope.kind, RopeKind::kInterleaved);
  check_choice("rope.scaling.kind", rope.scaling, RopeScalingKind::kLlama31);
  if (rope.kind == RopeKind::kNone) {
    if (!(rope == RopeSpec{})) {
      refuse("rope.kind", "none", "half or interleaved when other rope options are set");
    }
    return;
  }
  check_finite("rope.theta", rope.theta);
  if (rope.theta <= 0.0) refuse("rope.theta", text(rope.theta), "a positive number");
  check_range("rope.rotary_dim", rope.rotary_dim, 0, head_dim);
  const std::int32_t dim = effective_rotary_dim(rope, head_dim);
  if (dim % 2 != 0) refuse("rope.rotary_dim", text(std::int64_t{dim}), "an even number");
  validate_scaling(rope);
  check_frequencies(rope, head_dim);
}

namespace {

void validate_variant(const AttentionSpec& spec) {
  const VariantSpec& variant = spec.variant;
  if (variant.source.empty()) {
    if (!variant.name.empty()) refuse("variant.source", "empty text", "source of " + variant.name);
    if (!variant.params.empty()) refuse("variant.params", "parameters", "none without a variant");
    return;
  }
  if (!is_identifier(variant.name)) refuse("variant.name", variant.name, "a C++ identifier");
  for (std::size_t i = 0; i < variant.params.size(); ++i) {
    const VariantParam& param = variant.params[i];
    const std::string field = "variant.params." + param.name;
    if (!is_identifier(param.name)) refuse(field, param.name, "a C++ identifier as name");
    for (std::size_t j = 0; j < i; ++j) {
      if (variant.params[j].name == param.name) refuse(field, "a second entry", "unique names");
    }
    if (!param.is_array && param.values.size() != 1) {
      refuse(field, std::to_string(param.values.size()) + " values", "exactly one value");
    }
    for (float value : param.values) check_finite(field.c_str(), static_cast<double>(value));
  }
}

/// Feeds values into the fingerprint one by one, so that padding never counts.
class Fingerprint {
 public:
  template <class T>
  void add(T value) {
    std::uint64_t bits = 0;
    if constexpr (std::is_same_v<T, double>) {
      bits = std::bit_cast<std::uint64_t>(value);
    } else if constexpr (std::is_same_v<T, float>) {
      bits = std::bit_cast<std::uint32_t>(value);
    } else {
      bits = static_cast<std::uint64_t>(value);
    }
    hash_ = XXH64(&bits, sizeof(bits), hash_);
  }
  void add_text(std::string_view value) {
    add(value.size());
    hash_ = XXH64(value.data(), value.size(), hash_);
  }
  std::uint64_t digest() const { return hash_; }

 private:
  std::uint64_t hash_ = 0x506C616974ULL;
};

}  // namespace

void validate(const AttentionSpec& spec) {
  constexpr std::int32_t kMaxHeads = 1 << 14;
  check_range("num_qo_heads", spec.num_qo_heads, 1, kMaxHeads);
  check_range("num_kv_heads", spec.num_kv_heads, 1, kMaxHeads);
  if (spec.num_qo_heads % spec.num_kv_heads != 0) {
    refuse("num_qo_heads", text(std::int64_t{spec.num_qo_heads}),
           "a multiple of num_kv_heads = " + text(std::int64_t{spec.num_kv_heads}));
  }
  check_range("head_dim_qk", spec.head_dim_qk, 1, 576);
  check_range("head_dim_vo", spec.head_dim_vo, 1, 512);
  check_float_dtype("dtype.q", spec.q_dtype);
  check_float_dtype("dtype.kv", spec.kv_dtype);
  check_float_dtype("dtype.o", spec.o_dtype);
  check_choice("kv.kind", spec.kv_kind, KvKind::kRagged);
  check_choice("layout", spec.layout, KvLayout::kHnd);
  check_choice("mask.kind", spec.mask, MaskKind::kCustom);
  check_choice("reduction", spec.reduction, Reduction::kSum);
  check_range("page_size", spec.page_size, 1, 1 << 24);
  if (spec.kv_kind == KvKind::kRagged) {
    if (spec.page_size != 1) {
      refuse("page_size", text(std::int64_t{spec.page_size}), "1 for ragged K and V");
    }
    if (spec.layout != KvLayout::kNhd) refuse("layout", "HND", "NHD for ragged K and V");
  }
  check_range("mask.window_left", spec.window_left, -1, INT32_MAX);
  if (spec.sm_scale) check_f32("sm_scale", *spec.sm_scale);
  check_f32("logits_soft_cap", spec.logits_soft_cap);
  // A cap below the normal numbers of f32 would become 0, which is off, or divide to infinity.
  const double smallest_cap = static_cast<double>(std::numeric_limits<float>::min());
  if (spec.logits_soft_cap < 0.0 ||
      (spec.logits_soft_cap > 0.0 && spec.logits_soft_cap < smallest_cap)) {
    refuse("logits_soft_cap", text(spec.logits_soft_cap),
           "0 (off) or a positive number that f32 holds, at least " + text(smallest_cap));
  }
  validate_rope(spec.rope, spec.head_dim_qk);
  check_f32("reduction.bias", spec.sigmoid_bias);
  if (spec.reduction == Reduction::kSum) {
    if (spec.sink) refuse("sink", "given", "none: a sum has no denominator for it to join");
    if (spec.sigmoid_bias != 0.0 && !spec.variant.source.empty()) {
      refuse("reduction.bias", text(spec.sigmoid_bias), "0 with a user's variant");
    }
  } else if (spec.sigmoid_bias != 0.0) {
    refuse("reduction.bias", text(spec.sigmoid_bias), "0 with the softmax reduction");
  }
  validate_variant(spec);
}

std::uint64_t fingerprint(const AttentionSpec& spec) {
  Fingerprint f;
  f.add(spec.num_qo_heads);
  f.add(spec.num_kv_heads);
  f.add(spec.head_dim_qk);
  f.add(spec.head_dim_vo);
  f.add(static_cast<int>(spec.q_dtype));
  f.add(static_cast<int>(spec.kv_dtype));
  f.add(static_cast<int>(spec.o_dtype));
  f.add(static_cast<int>(spec.kv_kind));
  f.add(static_cast<int>(spec.layout));
  f.add(spec.page_size);
  f.add(static_cast<int>(spec.mask));
  f.add(spec.window_left);
  f.add(spec.sm_scale.has_value());
  f.add(spec.sm_scale.value_or(0.0));
  f.add(spec.logits_soft_cap);
  f.add(spec.alibi);
  f.add(spec.sink);
  f.add(spec.k_scale_per_head);
  f.add(spec.v_scale_per_head);
  f.add(static_cast<int>(spec.rope.kind));
  f.add(spec.rope.theta);
  f.add(spec.rope.rotary_dim);
  f.add(static_cast<int>(spec.rope.scaling));
  f.add(spec.rope.factor);
  f.add(spec.rope.low_freq_factor);
  f.add(spec.rope.high_freq_factor);
  f.add(spec.rope.original_max_position);
  f.add(spec.rope.explicit_q_positions);
  f.add(spec.rope.explicit_k_positions);
  f.add(static_cast<int>(spec.reduction));
  f.add(spec.sigmoid_bias);
  f.add_text(spec.variant.name);
  f.add_text(spec.variant.source);
  f.add(spec.variant.params.size());
  for (const VariantParam& param : spec.variant.params) {
    f.add_text(param.name);
    f.add(param.is_array);
    f.add(param.values.size());
    for (float value : param.values) f.add(value);
  }
  return f.digest();
}

double effective_sm_scale(const AttentionSpec& spec) noexcept {
  return spec.sm_scale.value_or(1.0 / std::sqrt(static_cast<double>(spec.head_dim_qk)));
}

}  // namespace plait
