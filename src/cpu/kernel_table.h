// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The SIMD kernels of one instruction set, as plain functions with run-time dimensions. A table
// exists per Highway target; the rest of the CPU backend is ordinary C++ above it.
//
// Layout of a tile. Query rows lie along the lanes: q_t is [dim][rows], logits are s[key][row], so
// that K needs no transposition, the softmax no horizontal reduction, and a row's bits do not
// depend on which other rows share its tile. Rows and dims are padded to `lanes`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plait::cpu {

/// Index of a floating DType in the per-dtype arrays below.
inline constexpr int kNumFloatDTypes = 5;

/// Online softmax (or sum) over one tile of logits.
struct TileStep {
  float* s = nullptr;  // [num_keys][ld]: dot products in, weights out
  int num_keys = 0;
  int num_rows = 0;  // padded to lanes
  std::ptrdiff_t ld = 0;
  float scale = 1.0F;                     // multiplies the dot products, into base 2
  const std::int32_t* key_pos = nullptr;  // [num_keys]
  const std::int32_t* row_lo = nullptr;   // [num_rows] first and last visible position; null: all
  const std::int32_t* row_hi = nullptr;   // visible
  float* m = nullptr;                     // [num_rows] running maximum, base 2
  float* l = nullptr;                     // [num_rows] running denominator
  float* alpha = nullptr;  // [num_rows] out: what the rows' accumulators are multiplied by
};

/// What the built-in logit hooks need beside the tile.
struct LogitParams {
  float scale = 1.0F;                     // dot product -> natural logit
  float soft_cap = 0.0F;                  // 0: off
  const float* slopes = nullptr;          // [num_rows] ALiBi, null: off
  const std::int32_t* row_pos = nullptr;  // [num_rows]
  float sigmoid_bias = 0.0F;
};

/// A few query rows per KV head against a run of keys that all of them see, read straight from the
/// cache, several heads together so that a page is read once from end to end.
struct StreamStep {
  const float* q = nullptr;  // [num_heads * num_rows][q_ld], padded to lanes with zeros
  std::ptrdiff_t q_ld = 0;
  int num_heads = 1;
  int num_rows = 0;  // per head
  int num_keys = 0;
  int num_ahead = 0;  // further rows that k_rows and v_rows list, to be prefetched
  const void* const* k_rows = nullptr;  // [num_keys + num_ahead], of the first head
  const void* const* v_rows = nullptr;
  std::ptrdiff_t k_head_stride = 0;  // bytes
  std::ptrdiff_t v_head_stride = 0;
  int head_run = 1;  // keys of a head that lie together: all of them, then the next head; 1: a few
  int dim_qk = 0;
  int dim_vo = 0;
  const float* scale = nullptr;  // [num_heads], multiplies the dot products, into base 2
  float* s = nullptr;            // scratch [kStreamBlock][s_ld]
  std::ptrdiff_t s_ld = 0;       // num_heads * num_rows, padded to lanes
  float* o = nullptr;            // [num_heads * num_rows][o_ld]
  std::ptrdiff_t o_ld = 0;
  float* m = nullptr;  // [s_ld], as in TileStep
  float* l = nullptr;
};

/// Keys that a stream step scores before it folds their values in.
inline constexpr int kStreamBlock = 32;
/// Most rows beyond its keys that a stream step lists.
inline constexpr int kStreamAhead = 32;
/// Most rows of all heads of a stream step together.
inline constexpr int kStreamRows = 64;

/// Rows are padded to whole vectors.
inline int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct KernelTable {
  const char* name;
  int lanes;            // f32 per vector
  int stream_max_rows;  // up to how many rows the stream path is faster

  /// Widens `count` rows of `dim` elements into dst [count][ld], columns up to the next multiple of
  /// lanes zeroed. Returns whether every element is finite.
  bool (*load_rows[kNumFloatDTypes])(const void* const* rows, int count, int dim, float* dst,
                                     std::ptrdiff_t ld);
  /// Narrows one row, round to nearest even.
  void (*store_row[kNumFloatDTypes])(const float* src, int dim, void* dst);

  /// c[m][n] = c[m][n] * row_scale[m] + sum_k a[m*am + k*ak] * b[k*ldb + n], k ascending, one
  /// fused multiply-add each; row_scale null: c starts at 0. n is a multiple of lanes.
  void (*gemm)(int m, int n, int k, const float* a, std::ptrdiff_t am, std::ptrdiff_t ak,
               const float* b, std::ptrdiff_t ldb, float* c, std::ptrdiff_t ldc,
               const float* row_scale);

  void (*softmax_tile)(const TileStep& step);
  /// Sum reduction: weights are sigmoid(s + bias) where visible, else 0.
  void (*sigmoid_tile)(const TileStep& step, const LogitParams& params);
  /// Natural logits in place: scale, then soft cap.
  void (*scale_tile)(const TileStep& step, const LogitParams& params);
  /// s += slope * (key_pos - row_pos).
  void (*alibi_tile)(const TileStep& step, const LogitParams& params);

  /// dst = src * factor; dst = a * wa + b * wb (one rounding per operation).
  void (*scale_row)(const float* src, float factor, int dim, float* dst);
  void (*blend_row)(const float* a, float wa, const float* b, float wb, int dim, float* dst);

  /// Rotates the pairs (x[i], x[i + half]) or (x[2i], x[2i+1]) by the angles whose cosines and
  /// sines are given.
  void (*rope_half)(float* x, const float* cos, const float* sin, int half);
  void (*rope_interleaved)(float* x, const float* cos, const float* sin, int half);
  /// cos/sin of the sum of two angles, element by element.
  void (*rope_angles)(const float* cos_a, const float* sin_a, const float* cos_b,
                      const float* sin_b, int half, float* cos, float* sin);

  void (*stream_step[kNumFloatDTypes])(const StreamStep& step);

  /// Reads memory and does as little else as possible: the bound that `plait bench` compares with.
  /// Returns a value that depends on every byte.
  std::uint32_t (*read)(const void* data, std::size_t bytes);
};

/// Best first, then null.
extern const KernelTable* const kKernelTables[];

/// The kernels for this machine: the best that it supports, or those that PLAIT_SIMD names (sse4,
/// avx2, avx512, avx512_bf16, neon). Throws Error for a name that is unknown or not supported here,
/// and on an x86-64 machine older than SSE4.2. Decided once per process.
const KernelTable& kernels();

/// The kernels named, or null if this build or machine lacks them.
const KernelTable* kernels_named(const char* name);

}  // namespace plait::cpu
