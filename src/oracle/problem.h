// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// One attention problem in memory: the content of a problem file (docs/formats.md) after every
// check. The oracle and the engine both start from it and share nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oracle/host_tensor.h"
#include "plait/dtype.h"

namespace plait::oracle {

enum class Source : std::uint8_t { kPaged, kRagged, kBsr, kCascade, kSelected };
enum class Mask : std::uint8_t { kNone, kCausal, kCustom };
enum class Rope : std::uint8_t { kNone, kHalf, kInterleaved };
enum class RopeScaling : std::uint8_t { kNone, kLinear, kLlama31 };
enum class PolicyName : std::uint8_t { kThroughput, kBatchInvariant, kFixedChunk, kUnsplit };

using Ints = std::vector<std::int64_t>;

/// Page table of one level. `paged` and `selected` have one level, whose row blocks are the
/// requests; a cascade has several, outermost first.
struct Level {
  Ints qo_indptr;      // [blocks + 1]
  Ints indptr;         // [blocks * lists + 1]; lists = num_kv_heads if per_kv_head, else 1
  Ints indices;        // page ids
  Ints last_page_len;  // [blocks * lists]
  Ints positions;      // selected only: logical position of the first token of each listed page
};

/// One sequence in blocks: row block r reads column blocks indices[indptr[r]..indptr[r+1]).
struct BlockSparse {
  Ints row_sizes;
  Ints col_sizes;
  Ints indptr;
  Ints indices;
  std::vector<std::vector<std::uint8_t>> masks;  // per listed block, row-major 0/1; empty: none
};

struct RopeOptions {
  Rope kind = Rope::kNone;
  double theta = 10000.0;
  std::int64_t rotary_dim = 0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position = 8192;
  std::vector<Ints> q_positions;  // per request [qo_len]; empty: logical positions
  std::vector<Ints> k_positions;  // per request [kv_len], by logical position; empty: the same
};

struct VariantOption {
  struct Param {
    std::string name;
    bool is_array = false;
    std::vector<double> values;
  };
  std::string name;
  std::string source;  // empty: none
  std::vector<Param> params;
};

struct Problem {
  std::int64_t num_qo_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim_qk = 0;
  std::int64_t head_dim_vo = 0;
  DType q_dtype = DType::kBF16;
  DType kv_dtype = DType::kBF16;
  DType o_dtype = DType::kBF16;
  bool hnd = false;

  HostTensor q;    // [total_q, num_qo_heads, head_dim_qk]
  Ints qo_indptr;  // [requests + 1]

  Source source = Source::kPaged;
  HostTensor k;                // pools as `hnd` says, or [total_kv, num_kv_heads, head_dim_qk]
  HostTensor v;                // the same with head_dim_vo; may alias k
  std::int64_t page_size = 0;  // paged, selected, cascade
  std::vector<Level> levels;   // paged, selected, cascade
  bool per_kv_head = false;    // selected
  Ints kv_indptr;              // ragged: [requests + 1], in tokens
  BlockSparse bsr;

  Mask mask = Mask::kNone;
  std::int64_t window_left = -1;
  std::vector<std::uint8_t> mask_bytes;  // custom: little-endian bits, requests byte-aligned
  Ints mask_offsets;                     // custom: first byte of each request, [requests + 1]

  double sm_scale = 0.0;  // filled in, never "default"
  double logits_soft_cap = 0.0;
  std::vector<double> alibi_slopes;  // empty: off
  std::vector<double> sink;          // empty: off
  std::vector<double> k_scale{1.0};  // one, or one per KV head
  std::vector<double> v_scale{1.0};
  RopeOptions rope;
  bool sum_sigmoid = false;
  double sigmoid_bias = 0.0;
  VariantOption variant;

  PolicyName policy = PolicyName::kThroughput;
  std::int64_t kv_chunk = 0;     // fixed_chunk only
  std::int64_t num_workers = 0;  // 0: the backend's own
  bool return_lse = false;
  bool state = false;

  bool names_tensors = false;  // some operand is a tensor of a file

  std::int64_t num_requests() const noexcept {
    return static_cast<std::int64_t>(qo_indptr.size()) - 1;
  }
  std::int64_t total_q() const noexcept { return qo_indptr.back(); }
  std::int64_t qo_len(std::int64_t request) const noexcept {
    const auto r = static_cast<std::size_t>(request);
    return qo_indptr[r + 1] - qo_indptr[r];
  }
  bool paged_storage() const noexcept {
    return source == Source::kPaged || source == Source::kSelected || source == Source::kCascade;
  }
  bool wants_lse() const noexcept { return !sum_sigmoid && (return_lse || state); }
  /// dtype of `o` as it is written: states are always f32.
  DType output_dtype() const noexcept { return state ? DType::kF32 : o_dtype; }
};

/// Number of tokens of row block `block` in `level` (list `list` of it, for per-KV-head pages).
std::int64_t listed_tokens(const Problem& problem, const Level& level, std::int64_t block,
                           std::int64_t list = 0);

/// Index of the row block of `level` that holds query rows of `request`. A request without rows
/// belongs to its namesake if the level lists one at the same row, else to the block that begins
/// there, else to the last one; -1 for a level without blocks.
std::int64_t block_of_request(const Problem& problem, const Level& level, std::int64_t request);

/// Logical length of a request over all its levels.
std::int64_t kv_len(const Problem& problem, std::int64_t request);

/// kv_len of the last level alone: the columns of a custom mask.
std::int64_t mask_columns(const Problem& problem, std::int64_t request);

}  // namespace plait::oracle
