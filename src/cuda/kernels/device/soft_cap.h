// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Soft caps. tanh.approx would lose 2^-11 of the value, which a cap multiplies to more than a
// 16-bit logit loses, and the exact form takes two special functions and loses digits of small
// values. Logits are mostly small beside their cap: for those a polynomial is exact enough.
#pragma once

#include "cuda/kernels/device/math.h"

namespace plait::device {

/// tanh(y / kTanhScale), |y| < 2, is an odd minimax polynomial of y to 2.2e-7 of the value. In this
/// scale bit 30 of y tells whether |y| >= 2, and the bits of many arguments, joined by or, whether
/// any is.
inline constexpr float kTanhScale = 3.2F;
inline constexpr float kTanh1 = 0.31249997F;
inline constexpr float kTanh3 = -1.01721054e-2F;
inline constexpr float kTanh5 = 3.96505784e-4F;
inline constexpr float kTanh7 = -1.50821479e-5F;
inline constexpr float kTanh9 = 4.27773585e-7F;

__device__ __forceinline__ bool any_large(u32 joined_bits) {
  return (joined_bits & 0x40000000U) != 0;
}

/// For |y| < 2, without a special function.
__device__ __forceinline__ float small_tanh(float y) {
  const float z = __fmul_rn(y, y);
  float q = __fmaf_rn(kTanh9, z, kTanh7);
  q = __fmaf_rn(q, z, kTanh5);
  q = __fmaf_rn(q, z, kTanh3);
  q = __fmaf_rn(q, z, kTanh1);
  return __fmul_rn(y, q);
}

/// For any y; the same bits where small_tanh will do. Absolute error below 3e-7.
__device__ __forceinline__ float scaled_tanh(float y) {
  // For large y the exponential is inf and its reciprocal 0.
  const float e = fast_exp2(__fmul_rn(y, 2.0F * kLog2E / kTanhScale));
  const float large = __fmaf_rn(-2.0F, fast_reciprocal(__fadd_rn(1.0F, e)), 1.0F);
  // Chosen by bits: of many choices ptxas makes predicated code that needs more registers.
  const u32 is_large = static_cast<u32>(static_cast<i32>(__float_as_uint(y) << 1) >> 31);
  const u32 bits = __float_as_uint(small_tanh(y));
  return __uint_as_float(bits ^ ((bits ^ __float_as_uint(large)) & is_large));
}

/// x(i) = tanh(rate / kTanhScale * x(i)) for i < kCount, by a whole warp: large arguments are rare,
/// and a warp without one needs neither of the two special functions.
template <i32 kCount, class X>
__device__ __forceinline__ void scaled_tanh_of(float rate, X&& x) {
  u32 bits = 0;
#pragma unroll
  for (i32 i = 0; i < kCount; ++i) {
    x(i) = __fmul_rn(x(i), rate);
    bits |= __float_as_uint(x(i));
  }
  if (__any_sync(0xFFFFFFFFU, any_large(bits))) {
#pragma unroll
    for (i32 i = 0; i < kCount; ++i) x(i) = scaled_tanh(x(i));
  } else {
#pragma unroll
    for (i32 i = 0; i < kCount; ++i) x(i) = small_tanh(x(i));
  }
}

/// The exponent in base 2 of a raw product under a soft cap, less `base`: an odd minimax polynomial
/// for tanh with every factor in its terms. It does not decrease, and takes -inf to -inf. Three
/// terms are exact to 2.5e-7 of the value up to 0.225 of the cap, five to 1.6e-7 up to 0.625.
template <i32 kTerms>
class CappedExponent {
 public:
  static_assert(kTerms == 3 || kTerms == 5);

  /// A logit is `scale` times a raw product, before it is capped.
  __device__ __forceinline__ void start(float scale, float cap) {
    constexpr bool kFew = kTerms == 3;
    constexpr float kTanh[5] = {kFew ? 0.99999982F : 0.99999989F,
                                kFew ? -0.33326047F : -0.33331954F,
                                kFew ? 0.12937056F : 0.13304526F, -0.051821864F, 0.015050942F};
    const float ratio = __fmul_rn(scale, fast_reciprocal(cap));
    const float square = __fmul_rn(ratio, ratio);
    float factor = __fmul_rn(kLog2E, scale);
#pragma unroll
    for (i32 k = 0; k < kTerms; ++k) {
      term_[k] = __fmul_rn(kTanh[k], factor);
      factor = __fmul_rn(factor, square);
    }
    // A last term that vanishes or overflows would make NaN of zeros and of hidden products, which
    // are -inf.
    const float last = term_[kTerms - 1];
    limit_ = last >= 0x1p-126F && last < 0x1p120F
                 ? __fmul_rn(kFew ? 0.225F : 0.625F, fast_reciprocal(ratio))
                 : -1.0F;
  }

  /// Raw products up to this magnitude are served; negative: none is.
  __device__ __forceinline__ float limit() const { return limit_; }

  __device__ __forceinline__ float operator()(float s) const { return __fmul_rn(s, quotient(s)); }
  __device__ __forceinline__ float operator()(float s, float base) const {
    return __fmaf_rn(s, quotient(s), -base);
  }

 private:
  __device__ __forceinline__ float quotient(float s) const {
    const float z = __fmul_rn(s, s);
    float q = term_[kTerms - 1];
#pragma unroll
    for (i32 k = kTerms - 2; k >= 0; --k) q = __fmaf_rn(q, z, term_[k]);
    return q;
  }

  float term_[kTerms];
  float limit_;
};

}  // namespace plait::device
