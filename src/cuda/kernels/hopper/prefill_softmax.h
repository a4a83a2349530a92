// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The softmax of a warpgroup's rows over one tile after another.
//
// A row's probabilities are relative to a reference: a maximum of the row that was true some tiles
// ago. It follows the maximum only when that is a headroom above it, which seldom happens after an
// item's first tile. So most tiles exchange no maxima between lanes and rescale nothing: they only
// ask whether any logit of the warp is too large. Each row decides for itself, whoever asks: its
// bits do not depend on the rows beside it.
#pragma once

#include "cuda/kernels/hopper/hooks.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// How far above its reference a row's maximum may be, in base 2: probabilities up to 2^15 are f16
/// numbers, too. If one key decides a row, its probability, then not 1, is rounded for the product
/// but not in the sum. An output of the same type hides that; f32 states would not: they follow at
/// once.
PLAIT_DEVICE float headroom(const Params& p) { return p.write_state != 0 ? 0.0F : 15.0F; }

/// A thread's two rows.
struct RowState {
  float reference[2] = {neg_inf(), neg_inf()};  // base 2; -inf: no key yet
  float sum[2] = {0.0F, 0.0F};                  // this thread's columns only
  /// Where nothing shifts logits: the bits, as an integer, from which on one is above the headroom.
  i32 limit[2] = {kAlways, kAlways};

  static constexpr i32 kAlways = -0x7FFFFFFF - 1;

  /// What to subtract from logits: any number will do where there is no key.
  PLAIT_DEVICE float base(i32 r) const { return reference[r] == neg_inf() ? 0.0F : reference[r]; }

  /// Lets row r refer to `maximum`; what was accumulated has to be multiplied by the result.
  PLAIT_DEVICE float refer(i32 r, float maximum) {
    const float before = reference[r];
    reference[r] = maximum;
    const float factor = fast_exp2(before - base(r));
    sum[r] *= factor;
    return factor;
  }
};

/// The largest of the four lanes that share a row.
template <class T>
PLAIT_DEVICE T row_largest(T value, T (*larger)(T, T)) {
  value = larger(value, __shfl_xor_sync(~0U, value, 1));
  return larger(value, __shfl_xor_sync(~0U, value, 2));
}

/// The largest of a thread's logits in each of its rows.
template <class C>
PLAIT_DEVICE void row_maxima(float (&top)[2], const float (&s)[C::kTileN / 2]) {
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    top[r] = fmaxf(s[r * 2], s[r * 2 + 1]);
#pragma unroll
    for (i32 i = 1; i < C::kTileN / 8; ++i) {
      top[r] = fmaxf(top[r], fmaxf(s[i * 4 + r * 2], s[i * 4 + r * 2 + 1]));
    }
  }
}

/// The same of their bits as integers: the largest logit if any is positive, else a negative number
/// or 0. Half the instructions, because integers have a maximum of three.
template <class C>
PLAIT_DEVICE void row_maxima_of_bits(i32 (&top)[2], const float (&s)[C::kTileN / 2]) {
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    top[r] = max_of(__float_as_int(s[r * 2]), __float_as_int(s[r * 2 + 1]));
#pragma unroll
    for (i32 i = 1; i < C::kTileN / 8; ++i) {
      top[r] = max_of(max_of(top[r], __float_as_int(s[i * 4 + r * 2])),
                      __float_as_int(s[i * 4 + r * 2 + 1]));
    }
  }
}

/// Lets references follow; whether any did, else `factor` is not set. Base 2 is exponent(logit) +
/// shift, where ALiBi shifts them. `first`, a constant: of the item's tiles.
template <class C>
PLAIT_DEVICE bool follow_maxima(const Params& p, const float (&s)[C::kTileN / 2], bool first,
                                RowState& rows, float (&factor)[2], const ScaledExponent& exponent,
                                const float (&shift)[2]) {
  const auto of = [&](float logit, i32 r) {
    return C::kAlibi ? exponent(logit, -shift[r]) : exponent(logit);
  };
  bool asks[2] = {true, true};
  if (!first) {
    i32 bits[2];
    row_maxima_of_bits<C>(bits, s);
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      // A row whose reference is lower than -headroom asks even if nothing is positive: its logits
      // cannot be told by their bits.
      if constexpr (C::kAlibi) {
        const float largest = __int_as_float(max_of(bits[r], 0));
        asks[r] = of(largest, r) > rows.reference[r] + headroom(p);
      } else {
        asks[r] = bits[r] >= rows.limit[r];
      }
    }
    if (!__any_sync(~0U, asks[0] || asks[1])) return false;
  }
  float top[2];
  row_maxima<C>(top, s);
  const float inverse = fast_reciprocal(exponent.scale);
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    const bool follows = first || row_largest<i32>(asks[r] ? 1 : 0, max_of) != 0;
    const float maximum = row_largest<float>(of(top[r], r), fmaxf);
    factor[r] = rows.refer(r, follows ? fmaxf(maximum, rows.reference[r]) : rows.reference[r]);
    if constexpr (!C::kAlibi) {
      const float limit = (rows.reference[r] + headroom(p)) * inverse;
      rows.limit[r] = limit >= 0.0F ? __float_as_int(limit) : RowState::kAlways;
    }
  }
  return true;
}

/// Whether the largest logits of soft caps are found by bits: where registers are not scarce.
template <class C>
inline constexpr bool kCapsByBits = C::kHeadDim <= 128;

/// The largest of a thread's logits in each of its rows, or 0 if that is larger (kCapsByBits).
template <class C>
PLAIT_DEVICE void capped_row_maxima(float (&top)[2], const float (&s)[C::kTileN / 2]) {
  if constexpr (kCapsByBits<C>) {
    i32 bits[2];
    row_maxima_of_bits<C>(bits, s);
#pragma unroll
    for (i32 r = 0; r < 2; ++r) top[r] = __int_as_float(max_of(bits[r], 0));
  } else {
    row_maxima<C>(top, s);
  }
}

/// The same for any exponent that does not decrease; `top` are the thread's capped_row_maxima.
template <class C, class Exponent>
PLAIT_DEVICE bool follow_maxima(const Params& p, const float (&s)[C::kTileN / 2],
                                const float (&top)[2], bool first, RowState& rows,
                                float (&factor)[2], const Exponent& exponent) {
  float maximum[2] = {exponent(top[0]), exponent(top[1])};
  const auto rises = [&](i32 r) { return maximum[r] > rows.reference[r] + headroom(p); };
  if (!first && !__any_sync(~0U, rises(0) || rises(1))) return false;
  float exact[2];
  if constexpr (kCapsByBits<C>) row_maxima<C>(exact, s);
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    maximum[r] = row_largest<float>(maximum[r], fmaxf);
    const bool follows = first || rises(r);
    if constexpr (kCapsByBits<C>) maximum[r] = row_largest<float>(exponent(exact[r]), fmaxf);
    factor[r] = rows.refer(r, follows ? fmaxf(maximum[r], rows.reference[r]) : rows.reference[r]);
  }
  return true;
}

/// Turns logits into probabilities in place; calls half_way() between the thread's rows.
template <class C, class Exponent, class HalfWay>
PLAIT_DEVICE void take_exponentials(float (&s)[C::kTileN / 2], RowState& rows,
                                    const Exponent& exponent, const float (&shift)[2],
                                    HalfWay&& half_way) {
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    const float base = C::kAlibi ? __fsub_rn(rows.base(r), shift[r]) : rows.base(r);
    float sum = rows.sum[r];
#pragma unroll
    for (i32 i = 0; i < C::kTileN / 8; ++i)
#pragma unroll
      for (i32 e = 0; e < 2; ++e) {
        const float probability = fast_exp2(exponent(s[i * 4 + r * 2 + e], base));
        s[i * 4 + r * 2 + e] = probability;
        sum += probability;
      }
    rows.sum[r] = sum;
    if (r == 0) half_way();
  }
}

#endif

}  // namespace plait::device::hopper
