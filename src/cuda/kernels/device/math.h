// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Transcendentals on the special-function unit. Products and sums that feed canonical results use
// explicit roundings, so that no compiler's choice of contraction changes a bit.
#pragma once

#include "core/device/state.h"

namespace plait::device {

inline constexpr float kLog2E = 1.4426950408889634F;
inline constexpr float kLn2 = 0.6931471805599453F;

/// 2^x with 2 ulp; 2^-inf = 0; results below the normal range flush to 0.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float fast_log2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// tanh for soft caps, of y / kTanhScale: then bit 30 of y tells whether |y| >= 2, and the bits of
/// many arguments, joined by or, whether any is. tanh.approx would lose 2^-11 of the value, which a
/// cap multiplies to more than a 16-bit logit loses.
inline constexpr float kTanhScale = 3.2F;
__device__ __forceinline__ bool any_large(u32 joined_bits) {
  return (joined_bits & 0x40000000U) != 0;
}

/// For |y| < 2: an odd minimax polynomial, 2.2e-7 of the value, no special function.
__device__ __forceinline__ float small_tanh(float y) {
  const float z = __fmul_rn(y, y);
  float q = 4.27773585e-7F;
  q = __fmaf_rn(q, z, -1.50821479e-5F);
  q = __fmaf_rn(q, z, 3.96505784e-4F);
  q = __fmaf_rn(q, z, -1.01721054e-2F);
  q = __fmaf_rn(q, z, 0.31249997F);
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

__device__ __forceinline__ float fast_sigmoid(float x) {
  return fast_reciprocal(1.0F + fast_exp2(-kLog2E * x));
}

/// What merge_weights needs.
struct DeviceMath {
  static __device__ __forceinline__ float exp(float x) { return fast_exp2(__fmul_rn(x, kLog2E)); }
  static __device__ __forceinline__ float log(float x) { return __fmul_rn(fast_log2(x), kLn2); }
};

/// merge_element of core/device/state.h with the contraction spelled out: a fold inside an
/// attention kernel and one in a merge kernel must give the same bits.
__device__ __forceinline__ float fold_element(const MergeWeights& w, float a, float b) {
  if (w.b == 0.0F) return w.a == 1.0F ? a : __fmul_rn(w.a, a);
  if (w.a == 0.0F) return w.b == 1.0F ? b : __fmul_rn(w.b, b);
  return __fmaf_rn(w.a, a, __fmul_rn(w.b, b));
}

}  // namespace plait::device
