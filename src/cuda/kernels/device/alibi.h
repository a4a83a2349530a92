// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// ALiBi: slope * (key position - row position), in four forms.
//
//   columns  Over keys at consecutive positions, slope times a constant column, counted from the
//            middle key, and a shift that all logits of the row get, slope times the distance of
//            that key: one multiply-add for a logit. The shift takes back most of what the columns
//            add, so that rounding loses what a bias of the keys' width does. Far keys, whose own
//            bias is as large, may lose that; next to the row, where biases are small and a steep
//            slope leaves nothing but a few keys, it would show in the lse.
//   near     Slope times an exact distance, in the unit of the logits.
//   base 2   The same after the logits were turned into base 2: for large biases. The exponent,
//            a logit in base 2 less the row's maximum, otherwise rounds the two apart, and could be
//            far above 0.
//   bases    In what the exponent subtracts: for the last of a warp's keys the row's reference less
//            that key's bias, for a key before it the same and slope times its distance from the
//            last. Scores are not touched. Where all keys lie before the row nothing cancels,
//            however near they are. Of keys behind the row a bias of the keys' width may be lost,
//            but only by keys that a slope of 0 or more makes weigh 2 to the power of that less
//            than the last. So slopes are not negative, and biases small, for all rows of an item,
//            or all of its tiles take the other forms.
#pragma once

#include "cuda/kernels/device/math.h"

namespace plait::device {

/// In base 2, and finite: infinity times distance 0 would be NaN.
__device__ __forceinline__ float alibi_slope(float slope) {
  constexpr float kSteepest = 0x1p127F;
  return fminf(fmaxf(__fmul_rn(slope, kLog2E), -kSteepest), kSteepest);
}

/// Whether slopes may be divided by `unit`, which turns logits into base 2.
__device__ __forceinline__ bool may_divide_slopes(float unit) {
  return unit >= 0x1p-60F && unit < 0x1p60F;
}

/// Whether biases at `distance`, as a magnitude, need not be added in base 2.
__device__ __forceinline__ bool are_small_biases(float slope, i32 distance) {
  return fabsf(slope) <= 2.0F && distance < (1 << 19);
}

}  // namespace plait::device
