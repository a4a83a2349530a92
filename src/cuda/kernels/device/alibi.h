// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// ALiBi in base 2: slope * (key position - row position), in two forms. The exact one takes a
// distance, a scaling and a multiply-add for each logit. The other takes a multiply-add: over keys
// at consecutive positions the bias is slope times a constant column, counted from the middle key,
// and a shift that all logits of the row get, slope times the distance of that key.
//
// The shift takes back most of what the columns add, so that rounding loses what a bias of the
// keys' width does. Far keys, whose own bias is as large, may lose that; next to the row, where
// biases are small and a steep slope leaves nothing but a few keys, it would show in the lse.
#pragma once

#include "cuda/kernels/device/math.h"

namespace plait::device {

/// In base 2, and finite: infinity times distance 0 would be NaN.
__device__ __forceinline__ float alibi_slope(float slope) {
  constexpr float kSteepest = 0x1p127F;
  return fminf(fmaxf(__fmul_rn(slope, kLog2E), -kSteepest), kSteepest);
}

/// Whether `width` keys around one at distance `middle` may be given columns and a shift; columns
/// are in the unit of the logits, which `unit` turns into base 2. Exponents are what a logit and
/// the row's maximum differ by, each rounded apart: for larger shifts, they could be far above 0.
__device__ __forceinline__ bool may_shift_bias(float middle, float shift, float width, float unit) {
  return fabsf(middle) >= width && fabsf(shift) < 0x1p20F && unit >= 0x1p-60F && unit < 0x1p60F;
}

}  // namespace plait::device
