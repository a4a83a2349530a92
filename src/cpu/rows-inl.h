// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Operations on single rows: scaling, blending and rotary embedding.
#if defined(PLAIT_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PLAIT_CPU_ROWS_INL_H_
#undef PLAIT_CPU_ROWS_INL_H_
#else
#define PLAIT_CPU_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace plait::cpu::HWY_NAMESPACE {

inline void scale_row(const float* src, float factor, int dim, float* dst) {
  const DF df;
  const VF f = hn::Set(df, factor);
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes)
    hn::StoreU(hn::Mul(hn::LoadU(df, src + i), f), df, dst + i);
  for (; i < dim; ++i) dst[i] = src[i] * factor;
}

inline void blend_row(const float* a, float wa, const float* b, float wb, int dim, float* dst) {
  const DF df;
  const VF va = hn::Set(df, wa);
  const VF vb = hn::Set(df, wb);
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    const VF x = hn::Mul(hn::LoadU(df, a + i), va);
    hn::StoreU(hn::Add(x, hn::Mul(hn::LoadU(df, b + i), vb)), df, dst + i);
  }
  for (; i < dim; ++i) dst[i] = a[i] * wa + b[i] * wb;
}

inline void rope_half(float* x, const float* cos, const float* sin, int half) {
  const DF df;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const VF a = hn::LoadU(df, x + i);
    const VF b = hn::LoadU(df, x + half + i);
    const VF c = hn::LoadU(df, cos + i);
    const VF s = hn::LoadU(df, sin + i);
    hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), df, x + i);
    hn::StoreU(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), df, x + half + i);
  }
  for (; i < half; ++i) {
    const float a = x[i];
    const float b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

inline void rope_interleaved(float* x, const float* cos, const float* sin, int half) {
  const DF df;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    VF a;
    VF b;
    hn::LoadInterleaved2(df, x + 2 * i, a, b);
    const VF c = hn::LoadU(df, cos + i);
    const VF s = hn::LoadU(df, sin + i);
    hn::StoreInterleaved2(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)),
                          hn::Add(hn::Mul(b, c), hn::Mul(a, s)), df, x + 2 * i);
  }
  for (; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

inline void rope_angles(const float* cos_a, const float* sin_a, const float* cos_b,
                        const float* sin_b, int half, float* cos, float* sin) {
  const DF df;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const VF ca = hn::LoadU(df, cos_a + i);
    const VF sa = hn::LoadU(df, sin_a + i);
    const VF cb = hn::LoadU(df, cos_b + i);
    const VF sb = hn::LoadU(df, sin_b + i);
    hn::StoreU(hn::Sub(hn::Mul(ca, cb), hn::Mul(sa, sb)), df, cos + i);
    hn::StoreU(hn::Add(hn::Mul(sa, cb), hn::Mul(ca, sb)), df, sin + i);
  }
  for (; i < half; ++i) {
    const float c = cos_a[i];  // the outputs may be the first angles' own arrays
    const float s = sin_a[i];
    cos[i] = c * cos_b[i] - s * sin_b[i];
    sin[i] = s * cos_b[i] + c * sin_b[i];
  }
}

inline std::uint32_t read_memory(const void* data, std::size_t bytes) {
  const DU du;
  const auto* words = static_cast<const std::uint32_t*>(data);
  const std::size_t count = bytes / sizeof(std::uint32_t);
  VU a = hn::Zero(du);
  VU b = a;
  VU c = a;
  VU d = a;
  std::size_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    a = hn::Xor(a, hn::LoadU(du, words + i));
    b = hn::Xor(b, hn::LoadU(du, words + i + kLanes));
    c = hn::Xor(c, hn::LoadU(du, words + i + 2 * kLanes));
    d = hn::Xor(d, hn::LoadU(du, words + i + 3 * kLanes));
  }
  HWY_ALIGN std::uint32_t lanes[kLanes];
  hn::Store(hn::Xor(hn::Xor(a, b), hn::Xor(c, d)), du, lanes);
  std::uint32_t sum = 0;
  for (std::uint32_t lane : lanes) sum ^= lane;
  for (; i < count; ++i) sum ^= words[i];
  return sum;
}

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
