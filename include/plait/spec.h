// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What almost never changes: the things a kernel is specialised for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plait/dtype.h"

namespace plait {

enum class KvKind : std::uint8_t {
  kPaged,   // K and V are pools of pages, read through page ids
  kRagged,  // K and V are [total_kv, num_kv_heads, dim]; the page table is the identity
};

/// Axis order of a paged pool: NHD is [pages, page_size, num_kv_heads, dim], HND is
/// [pages, num_kv_heads, page_size, dim]. Memory order is free: strides decide.
enum class KvLayout : std::uint8_t { kNhd, kHnd };

enum class MaskKind : std::uint8_t { kNone, kCausal, kCustom };

enum class Reduction : std::uint8_t {
  kSoftmax,  // partial results are (o, lse) and merge by log-sum-exp
  kSum,      // partial outputs add; there is no lse and no sink
};

enum class RopeKind : std::uint8_t { kNone, kHalf, kInterleaved };
enum class RopeScalingKind : std::uint8_t { kNone, kLinear, kLlama31 };

/// Rotary embedding applied to q and k inside attention; the cache then holds unrotated keys.
struct RopeSpec {
  RopeKind kind = RopeKind::kNone;
  double theta = 10000.0;       // no pair may turn by more than 64 radians per position
  std::int32_t rotary_dim = 0;  // even, at most head_dim_qk; 0 means head_dim_qk
  RopeScalingKind scaling = RopeScalingKind::kNone;
  double factor = 1.0;                        // linear and llama3.1
  double low_freq_factor = 1.0;               // llama3.1
  double high_freq_factor = 4.0;              // llama3.1
  std::int64_t original_max_position = 8192;  // llama3.1
  bool explicit_q_positions = false;          // run brings q_rope_positions
  bool explicit_k_positions = false;          // run brings k_rope_positions
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

/// A user's own variant: C++ source text with one struct `name` (docs/variants.md), compiled at
/// run time for either backend. `params` are its named parameters, scalars or f32 arrays; their
/// values travel with the spec so that no call can forget them.
struct VariantParam {
  std::string name;
  bool is_array = false;
  std::vector<float> values;  // exactly one if !is_array
  friend bool operator==(const VariantParam&, const VariantParam&) = default;
};
struct VariantSpec {
  std::string name;
  std::string source;  // empty: no user variant
  std::vector<VariantParam> params;
  friend bool operator==(const VariantSpec&, const VariantSpec&) = default;
};

/// The attention of one layer group. See docs/math.md for the exact mathematics.
struct AttentionSpec {
  std::int32_t num_qo_heads = 0;
  std::int32_t num_kv_heads = 0;  // divides num_qo_heads
  std::int32_t head_dim_qk = 0;   // 1..576
  std::int32_t head_dim_vo = 0;   // 1..512
  DType q_dtype = DType::kBF16;
  DType kv_dtype = DType::kBF16;
  DType o_dtype = DType::kBF16;

  KvKind kv_kind = KvKind::kPaged;
  KvLayout layout = KvLayout::kNhd;
  std::int32_t page_size = 16;  // tokens per page; 1 for ragged

  MaskKind mask = MaskKind::kCausal;
  std::int32_t window_left = -1;  // W >= 0: row i sees key j only if j >= pos_i - W; -1 is off

  std::optional<double> sm_scale;  // none: 1/sqrt(head_dim_qk); 0 weighs all visible keys alike
  double logits_soft_cap = 0.0;    // 0 is off
  bool alibi = false;              // run brings alibi_slopes
  bool sink = false;               // run brings sink
  bool k_scale_per_head = false;   // run brings k_scales, else the scalar of RunArgs
  bool v_scale_per_head = false;
  RopeSpec rope;

  Reduction reduction = Reduction::kSoftmax;
  double sigmoid_bias = 0.0;  // kSum without a user variant: weights are sigmoid(s + bias)
  VariantSpec variant;

  std::int32_t group_size() const noexcept { return num_qo_heads / num_kv_heads; }
  friend bool operator==(const AttentionSpec&, const AttentionSpec&) = default;
};

/// Throws Error naming the first field that is wrong in itself (does not ask any backend).
void validate(const AttentionSpec& spec);

/// The rope part of it, for vectors of `head_dim` elements; field names start with "rope.".
void validate_rope(const RopeSpec& rope, std::int32_t head_dim);

/// A 64-bit fingerprint of everything above, stable within one build.
std::uint64_t fingerprint(const AttentionSpec& spec);

/// sm_scale with its default filled in.
double effective_sm_scale(const AttentionSpec& spec) noexcept;

}  // namespace plait
