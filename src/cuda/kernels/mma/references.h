// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The online softmax of a thread's rows, in base 2.
//
// A row's probabilities are relative to a reference: a maximum of the row that was true some tiles
// ago. It follows the maximum only when that is more than a headroom above it, which seldom happens
// after an item's first tile. So most tiles exchange no maxima between lanes and rescale nothing:
// a warp only asks whether any of its logits is too large. Each row decides for itself, whoever
// asks: its bits do not depend on the rows beside it.
#pragma once

#include "cuda/kernels/device/math.h"
#include "cuda/kernels/mma/products.h"

namespace plait::device::mma {

/// The largest of the four lanes that share a row.
template <class T>
__device__ __forceinline__ T row_largest(T value, T (*larger)(T, T)) {
  value = larger(value, __shfl_xor_sync(0xFFFFFFFFU, value, 1));
  return larger(value, __shfl_xor_sync(0xFFFFFFFFU, value, 2));
}

struct RowReferences {
  using C = Config;
  static constexpr i32 kRows = C::kRowsPerThread;
  /// Of a row without any key yet: not -inf, whose differences would be NaN.
  static constexpr float kLowest = -3.402823466e38F;
  static constexpr i32 kAlways = -0x7FFFFFFF - 1;
  /// ALiBi shifts logits by tile and row, so that limits of their bits would not last.
  static constexpr bool kShifted = C::kAlibi && !kHookedLogits;

  /// Outputs show a weight of the deciding key that was rounded in the products alone, see
  /// headroom.
  static constexpr bool kFiner =
      C::kODtype != C::kCompute && C::kODtype != DTypeCode::kBF16 && !kIsFp8<C::kODtype>;
  static constexpr float kHeadroom = 15.0F;

  float reference[kRows];  // base 2
  float sum[kRows];        // this thread's share
  /// The bits of a score, as an integer, from which on a row has to ask for its maximum. Bits
  /// compare like the numbers where these are not negative: where the limit would be, a row asks
  /// at every tile.
  i32 limit[kRows];

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      reference[r] = kLowest;
      sum[r] = 0.0F;
      limit[r] = kAlways;
    }
  }

  /// Turns scores into probabilities. A base-2 logit is score * unit + shift of its row.
  __device__ __forceinline__ void step(Scores& scores, Outputs& outputs, float unit,
                                       const float (&shift)[kRows], const AttentionParams& p) {
    if constexpr (kShifted) {
      follow_shifted(scores, outputs, unit, shift);
    } else {
      follow(scores, outputs, unit, p);
    }
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      const float base = kShifted ? __fsub_rn(reference[r], shift[r]) : reference[r];
#pragma unroll
      for (i32 n = 0; n < C::kKeyTiles; ++n) {
#pragma unroll
        for (i32 e = 0; e < 2; ++e) {
          float& x = scores[r / 2][n].x[r % 2 * 2 + e];
          x = fast_exp2(__fmaf_rn(x, unit, -base));
          sum[r] = __fadd_rn(sum[r], x);
        }
      }
    }
  }

  /// Sums of probabilities relative to references that may be too far behind.
  struct Attempt {
    float sum[kRows];
    bool asks;  // for a higher reference: some probability may be above 2^kHeadroom
  };

  /// Turns scores into probabilities relative to the references as they are. The exponent is
  /// score * unit - base(row, key tile, which of its two keys). Sums, which are needed anyway, tell
  /// whether a probability is too large: so neither a maximum nor a vote stands before the
  /// exponentials, and those of some rows may go beside the products of others.
  template <class Base>
  __device__ __forceinline__ Attempt attempt(Scores& scores, float unit, Base base) const {
    Attempt part;
    part.asks = false;
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
#pragma unroll
      for (i32 n = 0; n < C::kKeyTiles; ++n) {
#pragma unroll
        for (i32 e = 0; e < 2; ++e) {
          float& x = scores[r / 2][n].x[r % 2 * 2 + e];
          x = fast_exp2(__fmaf_rn(x, unit, -base(r, n, e)));
          part.sum[r] = n == 0 && e == 0 ? x : __fadd_rn(part.sum[r], x);
        }
      }
      part.asks = part.asks || !(part.sum[r] <= 0x1p15F);  // so does NaN
    }
    return part;
  }

  /// Takes the sums, unless some row of the warp asks.
  __device__ __forceinline__ bool accept(const Attempt& part) {
    if (__any_sync(0xFFFFFFFFU, part.asks)) return false;
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) sum[r] = __fadd_rn(sum[r], part.sum[r]);
    return true;
  }

 private:
  /// How far a reference may lag behind. Up to 2^15, probabilities are f16 numbers, too, and as
  /// exact as those up to 1, but for one: the key that decides a row has weight 1 only if its
  /// reference is its maximum. Otherwise its weight is rounded in the products and not in the sum,
  /// an error of the whole output, of the size of the output's own rounding if that is no finer.
  static __device__ __forceinline__ float headroom(const AttentionParams& p) {
    const bool shows = C::kTensorCores && (kFiner || p.write_state != 0);
    return shows ? 0.0F : kHeadroom;
  }

  static __device__ __forceinline__ float& score(Scores& scores, i32 r, i32 i) {
    return scores[r / 2][i / 2].x[r % 2 * 2 + i % 2];
  }

  static __device__ __forceinline__ float largest(Scores& scores, i32 r) {
    float top = fmaxf(score(scores, r, 0), score(scores, r, 1));
#pragma unroll
    for (i32 i = 2; i < C::kKeyTiles * 2; i += 2) {
      top = fmaxf(top, fmaxf(score(scores, r, i), score(scores, r, i + 1)));
    }
    return top;
  }

  /// The same of their bits as integers: the largest score if any is positive, else a negative
  /// number or 0. Half the instructions from sm_90 on, where integers have a maximum of three.
  static __device__ __forceinline__ i32 largest_bits(Scores& scores, i32 r) {
    i32 top = max_of(__float_as_int(score(scores, r, 0)), __float_as_int(score(scores, r, 1)));
#pragma unroll
    for (i32 i = 2; i < C::kKeyTiles * 2; i += 2) {
      top = max_of(max_of(top, __float_as_int(score(scores, r, i))),
                   __float_as_int(score(scores, r, i + 1)));
    }
    return top;
  }

  __device__ __forceinline__ void follow(Scores& scores, Outputs& outputs, float unit,
                                         const AttentionParams& p) {
    i32 bits[kRows];
    bool asks = false;
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      bits[r] = largest_bits(scores, r);
      asks = asks || bits[r] >= limit[r];  // -0.0 is the lowest integer
    }
    if (!__any_sync(0xFFFFFFFFU, asks)) return;
    bool negative = false;
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      bits[r] = row_largest<i32>(bits[r], max_of);
      negative = negative || bits[r] < 0;
    }
    float top[kRows];
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) top[r] = __int_as_float(bits[r]);
    if (__any_sync(0xFFFFFFFFU, negative)) {
#pragma unroll
      for (i32 r = 0; r < kRows; ++r) top[r] = row_largest<float>(largest(scores, r), fmaxf);
    }
    const float inverse = fast_reciprocal(unit);
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      const float maximum = fmaxf(__fmul_rn(top[r], unit), reference[r]);
      refer(outputs, r, bits[r] >= limit[r] ? maximum : reference[r]);
      const float above = __fmul_rn(__fadd_rn(reference[r], headroom(p)), inverse);
      limit[r] = above >= 0.0F ? __float_as_int(above) : kAlways;
    }
  }

  /// The same for shifted logits, exactly: from an item's last tile on they hardly rise.
  __device__ __forceinline__ void follow_shifted(Scores& scores, Outputs& outputs, float unit,
                                                 const float (&shift)[kRows]) {
    float top[kRows];
    bool risen = false;
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      top[r] = __fmaf_rn(largest(scores, r), unit, shift[r]);
      risen = risen || top[r] > reference[r];
    }
    if (!__any_sync(0xFFFFFFFFU, risen)) return;
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      refer(outputs, r, fmaxf(row_largest<float>(top[r], fmaxf), reference[r]));
    }
  }

  /// Lets row r refer to `maximum` what it has accumulated.
  __device__ __forceinline__ void refer(Outputs& outputs, i32 r, float maximum) {
    const float factor = fast_exp2(__fsub_rn(reference[r], maximum));
    reference[r] = maximum;
    sum[r] = __fmul_rn(sum[r], factor);
#pragma unroll
    for (i32 n = 0; n < C::kColumnTiles; ++n) {
      float* x = outputs[r / 2][n].x + r % 2 * 2;
      x[0] = __fmul_rn(x[0], factor);
      x[1] = __fmul_rn(x[1], factor);
    }
  }
};

}  // namespace plait::device::mma
