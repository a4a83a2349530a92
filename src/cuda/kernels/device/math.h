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
