// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/device/portable.h"

namespace plait::device {

struct Rotation {
  float cosine, sine;
};

/// The rotation of pair `pair` at `position`. `turns` holds, per pair, turns per position as
/// high + low float; the whole turns drop out exactly before anything is rounded, so the angle is
/// good to 1e-4 rad up to position 2^20 and beyond (2^24, where positions stop being floats).
__device__ __forceinline__ Rotation rotation_at(const float* turns, i32 pair, i32 position) {
  const float2 rate = __ldg(reinterpret_cast<const float2*>(turns) + pair);
  const float p = static_cast<float>(position);
  const float product = __fmul_rn(p, rate.x);
  const float lost = __fmaf_rn(p, rate.x, -product);
  const float fraction = product - rintf(product);
  const float angle = (fraction + __fmaf_rn(p, rate.y, lost)) * 6.283185307179586F;
  Rotation r;
  asm("cos.approx.f32 %0, %1;" : "=f"(r.cosine) : "f"(angle));
  asm("sin.approx.f32 %0, %1;" : "=f"(r.sine) : "f"(angle));
  return r;
}

}  // namespace plait::device
