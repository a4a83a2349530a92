// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Widening loads from every KV dtype, exact; narrowing stores where SIMD does them exactly too.
#if defined(PLAIT_CPU_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PLAIT_CPU_LOAD_INL_H_
#undef PLAIT_CPU_LOAD_INL_H_
#else
#define PLAIT_CPU_LOAD_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/convert.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace plait::cpu::HWY_NAMESPACE {

// One struct per dtype: `load` widens kLanes consecutive elements.

struct LoadF32 {
  using Element = float;
  static HWY_INLINE VF load(const Element* p) { return hn::LoadU(DF(), p); }
};

struct LoadBF16 {
  using Element = std::uint16_t;
  /// The even and the odd elements of 2 * kLanes.
  static HWY_INLINE void split(const Element* p, VF& even, VF& odd) {
    const DU du;
    const VU words = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(p));
    even = hn::BitCast(DF(), hn::ShiftLeft<16>(words));
    odd = hn::BitCast(DF(), hn::And(words, hn::Set(du, 0xFFFF0000U)));
  }
  static HWY_INLINE VF load(const Element* p) {
    const VU wide = hn::PromoteTo(DU(), hn::LoadU(hn::Rebind<std::uint16_t, DF>(), p));
    return hn::BitCast(DF(), hn::ShiftLeft<16>(wide));
  }
};

/// Small floats with `ExponentBits` and `MantissaBits` in the low bits of a u32, widened by placing
/// exponent and mantissa at f32's and multiplying by the difference of the biases, which is exact
/// for subnormals too.
template <int ExponentBits, int MantissaBits>
HWY_INLINE VF widen_small(VU x) {
  const DF df;
  const DU du;
  constexpr int kBits = ExponentBits + MantissaBits;
  constexpr int kBias = (1 << (ExponentBits - 1)) - 1;
  const VU magnitude = hn::And(x, hn::Set(du, (1U << kBits) - 1U));
  const VU sign = hn::ShiftLeft<31 - kBits>(hn::AndNot(hn::Set(du, (1U << kBits) - 1U), x));
  const VF placed = hn::BitCast(df, hn::ShiftLeft<23 - MantissaBits>(magnitude));
  const VF rebias = hn::BitCast(df, hn::Set(du, static_cast<std::uint32_t>(254 - kBias) << 23));
  return hn::BitCast(df, hn::Or(hn::BitCast(du, hn::Mul(placed, rebias)), sign));
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
#define PLAIT_CPU_HAS_F16_LOADS 1
using D16 = hn::Rebind<std::uint16_t, DF>;

/// Widens f16 given as bits; the hardware takes subnormals in its stride.
HWY_INLINE VF widen_f16(hn::Vec<D16> bits) {
  return hn::PromoteTo(DF(), hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), bits));
}
#else
#define PLAIT_CPU_HAS_F16_LOADS 0
#endif

struct LoadF16 {
  using Element = std::uint16_t;
  static HWY_INLINE VF load(const Element* p) {
#if PLAIT_CPU_HAS_F16_LOADS
    const hn::Rebind<hwy::float16_t, DF> d16;
    return hn::PromoteTo(DF(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
#else
    const DU du;
    const VU x = hn::PromoteTo(du, hn::LoadU(hn::Rebind<std::uint16_t, DF>(), p));
    const VU special = hn::Set(du, 0x7C00U);
    const VU inf =
        hn::IfThenElseZero(hn::Eq(hn::And(x, special), special), hn::Set(du, 0x7F800000U));
    return hn::BitCast(DF(), hn::Or(hn::BitCast(du, widen_small<5, 10>(x)), inf));
#endif
  }
};

struct LoadE4M3 {
  using Element = std::uint8_t;
  static HWY_INLINE VF load(const Element* p) {
#if PLAIT_CPU_HAS_F16_LOADS
    // Sign to the top, then exponent and mantissa where f16 has them: 2^-8 of the value.
    const DF df;
    const D16 d16;
    const hn::RebindToSigned<D16> d16s;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(hn::Rebind<std::uint8_t, DF>(), p));
    const auto spread = hn::ShiftRight<1>(hn::BitCast(d16s, hn::ShiftLeft<8>(wide)));
    const VF x = hn::Mul(widen_f16(hn::And(hn::BitCast(d16, spread), hn::Set(d16, 0xBF80U))),
                         hn::Set(df, 256.0F));
    // The encodings of NaN would be +-480.
    const VF nan = hn::Set(df, std::numeric_limits<float>::quiet_NaN());
    return hn::IfThenElse(hn::Gt(hn::Abs(x), hn::Set(df, 448.0F)), nan, x);
#else
    const DU du;
    const VU x = hn::PromoteTo(du, hn::LoadU(hn::Rebind<std::uint8_t, DF>(), p));
    const VU nan = hn::Set(du, 0x7FU);
    const VU bits = hn::IfThenElseZero(hn::Eq(hn::And(x, nan), nan), hn::Set(du, 0x7FC00000U));
    return hn::BitCast(DF(), hn::Or(hn::BitCast(du, widen_small<4, 3>(x)), bits));
#endif
  }
};

struct LoadE5M2 {
  using Element = std::uint8_t;
  static HWY_INLINE VF load(const Element* p) {
#if PLAIT_CPU_HAS_F16_LOADS
    // It is f16 without the lower byte.
    const D16 d16;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(hn::Rebind<std::uint8_t, DF>(), p));
    return widen_f16(hn::ShiftLeft<8>(wide));
#else
    const DU du;
    const VU x = hn::PromoteTo(du, hn::LoadU(hn::Rebind<std::uint8_t, DF>(), p));
    const VU special = hn::Set(du, 0x7CU);
    const VU inf =
        hn::IfThenElseZero(hn::Eq(hn::And(x, special), special), hn::Set(du, 0x7F800000U));
    return hn::BitCast(DF(), hn::Or(hn::BitCast(du, widen_small<5, 2>(x)), inf));
#endif
  }
};

/// The first `count` < kLanes elements, the other lanes 0, without reading past them.
template <class Load>
HWY_INLINE VF load_tail(const typename Load::Element* p, int count) {
  HWY_ALIGN typename Load::Element buffer[kLanes] = {};
  std::memcpy(buffer, p, static_cast<std::size_t>(count) * sizeof(typename Load::Element));
  return Load::load(buffer);
}

template <class Load>
bool load_rows(const void* const* rows, int count, int dim, float* dst, std::ptrdiff_t ld) {
  const DF df;
  const VF zero = hn::Zero(df);
  VF poison = zero;  // x * 0 is NaN exactly for the values that must not meet a weight of 0
  const int whole = dim / kLanes * kLanes;
  for (int row = 0; row < count; ++row) {
    const auto* src = static_cast<const typename Load::Element*>(rows[row]);
    float* out = dst + row * ld;
    for (int i = 0; i < whole; i += kLanes) {
      const VF x = Load::load(src + i);
      poison = hn::MulAdd(x, zero, poison);
      hn::StoreU(x, df, out + i);
    }
    if (whole < dim) {
      const VF x = load_tail<Load>(src + whole, dim - whole);
      poison = hn::MulAdd(x, zero, poison);
      hn::StoreU(x, df, out + whole);
    }
  }
  return hn::AllTrue(df, hn::Eq(poison, zero));
}

inline void store_f32(const float* src, int dim, void* dst) {
  std::memcpy(dst, src, static_cast<std::size_t>(dim) * sizeof(float));
}

inline void store_bf16(const float* src, int dim, void* dst) {
  const DF df;
  const DU du;
  const hn::Rebind<std::uint16_t, DF> d16;
  auto* out = static_cast<std::uint16_t*>(dst);
  const int whole = dim / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) {
    const VF x = hn::LoadU(df, src + i);
    const VU bits = hn::BitCast(du, x);
    const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
    const VU rounded = hn::Add(bits, hn::Add(hn::Set(du, 0x7FFFU), odd));
    const VU sign = hn::And(bits, hn::Set(du, 0x80000000U));
    const VU nan = hn::Or(sign, hn::Set(du, 0x7FC00000U));
    const VU kept = hn::IfThenElse(hn::RebindMask(du, hn::Ne(x, x)), nan, rounded);
    hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(kept)), d16, out + i);
  }
  for (int i = whole; i < dim; ++i) out[i] = f32_to_bf16(src[i]);
}

inline void store_f16(const float* src, int dim, void* dst) {
  auto* out = static_cast<std::uint16_t*>(dst);
  int i = 0;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const DF df;
  const hn::Rebind<hwy::float16_t, DF> d16;
  for (; i + kLanes <= dim; i += kLanes) {
    hn::StoreU(hn::DemoteTo(d16, hn::LoadU(df, src + i)), d16,
               reinterpret_cast<hwy::float16_t*>(out + i));
  }
#endif
  for (; i < dim; ++i) out[i] = f32_to_f16(src[i]);
}

inline void store_e4m3(const float* src, int dim, void* dst) {
  auto* out = static_cast<std::uint8_t*>(dst);
  for (int i = 0; i < dim; ++i) out[i] = f32_to_f8_e4m3(src[i], Overflow::kSaturate);
}

inline void store_e5m2(const float* src, int dim, void* dst) {
  auto* out = static_cast<std::uint8_t*>(dst);
  for (int i = 0; i < dim; ++i) out[i] = f32_to_f8_e5m2(src[i], Overflow::kSaturate);
}

#undef PLAIT_CPU_HAS_F16_LOADS

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
