// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The built-in logit hooks, in the form that docs/variants.md describes for everybody's. T is a
// SIMD vector here; `tanh` and `exp` are found by argument.
#if defined(PLAIT_CPU_BUILTIN_VARIANTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PLAIT_CPU_BUILTIN_VARIANTS_INL_H_
#undef PLAIT_CPU_BUILTIN_VARIANTS_INL_H_
#else
#define PLAIT_CPU_BUILTIN_VARIANTS_INL_H_
#endif

#include "core/device/variant.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace plait::cpu::HWY_NAMESPACE {

/// s = c * tanh(s / c)
struct SoftCap : device::VariantBase {
  static constexpr bool kHasLogits = true;
  template <class T, class Params>
  PLAIT_HD static T logits(T s, const device::LogitSite<T>&, const Params& p) {
    return tanh(s * (1.0F / p.soft_cap)) * p.soft_cap;
  }
};

/// s += slope * (j - pos_i)
struct Alibi : device::VariantBase {
  static constexpr bool kHasLogits = true;
  template <class T, class Params>
  PLAIT_HD static T logits(T s, const device::LogitSite<T>& at, const Params& p) {
    return s + p.slope * at.distance;
  }
};

/// Weights sigmoid(s + b); partial outputs add.
struct Sigmoid : device::VariantBase {
  static constexpr device::ReductionKind kReduction = device::ReductionKind::kSum;
  template <class T, class Params>
  PLAIT_HD static T weight(T s, const device::LogitSite<T>&, const Params& p) {
    return 1.0F / (exp(-(s + p.sigmoid_bias)) + 1.0F);
  }
};

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
