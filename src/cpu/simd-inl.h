// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// f32 vectors as values with operators, and the elementary functions of the kernels.
// Included once per Highway target.
#if defined(PLAIT_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PLAIT_CPU_SIMD_INL_H_
#undef PLAIT_CPU_SIMD_INL_H_
#else
#define PLAIT_CPU_SIMD_INL_H_
#endif

#include <cstdint>
#include <limits>

#include "core/device/variant.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace plait::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU = hn::Vec<DU>;
using MF = hn::Mask<DF>;

inline constexpr int kLanes = HWY_MAX_BYTES / 4;

/// The value type that built-in variants are instantiated with: lanes are query rows.
struct F32s {
  VF v;
};
struct I32s {
  VI v;
};
struct Bools {
  MF m;
};

HWY_INLINE F32s splat(float x) { return {hn::Set(DF(), x)}; }
HWY_INLINE F32s operator+(F32s a, F32s b) { return {hn::Add(a.v, b.v)}; }
HWY_INLINE F32s operator-(F32s a, F32s b) { return {hn::Sub(a.v, b.v)}; }
HWY_INLINE F32s operator*(F32s a, F32s b) { return {hn::Mul(a.v, b.v)}; }
HWY_INLINE F32s operator/(F32s a, F32s b) { return {hn::Div(a.v, b.v)}; }
HWY_INLINE F32s operator+(F32s a, float b) { return a + splat(b); }
HWY_INLINE F32s operator*(F32s a, float b) { return a * splat(b); }
HWY_INLINE F32s operator*(float a, F32s b) { return splat(a) * b; }
HWY_INLINE F32s operator/(float a, F32s b) { return splat(a) / b; }
HWY_INLINE F32s operator-(F32s a) { return {hn::Neg(a.v)}; }
HWY_INLINE F32s tanh(F32s x) { return {hn::Tanh(DF(), x.v)}; }

/// 2^x for x <= 0 as the softmax needs it: exactly 1 at 0, exactly 0 below -126 (so at -inf),
/// NaN for NaN; relative error about 2^-23.
HWY_INLINE VF exp2_nonpositive(VF x) {
  const DF df;
  const DI di;
  const VF n = hn::Round(x);
  const VF f = hn::Sub(x, n);
  // Minimax for 2^f on [-0.5, 0.5], constant term pinned to 1.
  VF p = hn::Set(df, 1.5403530393381609954e-4F);
  p = hn::MulAdd(p, f, hn::Set(df, 1.3333558146428443423e-3F));
  p = hn::MulAdd(p, f, hn::Set(df, 9.6181291076284771619e-3F));
  p = hn::MulAdd(p, f, hn::Set(df, 5.5504108664821579953e-2F));
  p = hn::MulAdd(p, f, hn::Set(df, 2.4022650695910071233e-1F));
  p = hn::MulAdd(p, f, hn::Set(df, 6.9314718055994530942e-1F));
  p = hn::MulAdd(p, f, hn::Set(df, 1.0F));
  // The clamp keeps the conversion in range; lanes below it are replaced.
  const VF clamped = hn::Max(n, hn::Set(df, -126.0F));
  const VI exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, clamped), hn::Set(di, 127)));
  const VF r = hn::Mul(p, hn::BitCast(df, exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(df, -126.0F)), r);
}

/// e^x, saturating to 0 and infinity.
HWY_INLINE F32s exp(F32s x) {
  // Highway's Exp saturates at the low end only: past 2^128 its result is arbitrary.
  const DF d;
  const auto largest = hn::Set(d, 88.72283F);
  const auto infinity = hn::Inf(d);
  const auto e = hn::Exp(d, hn::Min(largest, x.v));  // in this order a NaN passes through on x86
  return {hn::IfThenElse(hn::Gt(x.v, largest), infinity, e)};
}

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace plait::device {

template <>
struct LanesOf<plait::cpu::HWY_NAMESPACE::F32s> {
  using Int = plait::cpu::HWY_NAMESPACE::I32s;
  using Mask = plait::cpu::HWY_NAMESPACE::Bools;
};

}  // namespace plait::device

#endif  // per-target include guard
