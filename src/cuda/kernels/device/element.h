// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Element types without the toolkit's headers: storage words, exact widening to float, narrowing by
// round to nearest even. fp8 narrowing saturates. The same code serves every architecture; fp8 is
// decoded with integer shifts and one exact product because its cvt needs sm_89.
#pragma once

#include "core/device/portable.h"
#include "cuda/kernels/common/dtypes.h"

namespace plait::device {

template <DTypeCode kCode>
struct Element;

template <>
struct Element<DTypeCode::kF32> {
  using Word = float;
  static __device__ __forceinline__ float widen(Word w) { return w; }
  static __device__ __forceinline__ Word narrow(float x) { return x; }
  static __device__ u32 narrow_pair(float low, float high);  // 16-bit types only
};

template <>
struct Element<DTypeCode::kF16> {
  using Word = u16;
  static __device__ __forceinline__ float widen(Word w) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(w));
    return x;
  }
  static __device__ __forceinline__ Word narrow(float x) {
    Word w;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(w) : "f"(x));
    return w;
  }
  /// `low` in the low half.
  static __device__ __forceinline__ u32 narrow_pair(float low, float high) {
    u32 w;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
  }
};

template <>
struct Element<DTypeCode::kBF16> {
  using Word = u16;
  static __device__ __forceinline__ float widen(Word w) {
    return __uint_as_float(static_cast<u32>(w) << 16);
  }
  static __device__ __forceinline__ Word narrow(float x) {
    return static_cast<Word>(narrow_pair(x, 0.0F) & 0xFFFFU);
  }
  static __device__ __forceinline__ u32 narrow_pair(float low, float high) {
    u32 w;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(high), "f"(low));
    return w;
  }
};

/// An 8-bit float with kMantissa bits below the point, bias kBias, in the low bits of a byte.
template <int kMantissa, int kBias>
__device__ __forceinline__ u8 narrow_small_float(float x, float largest, u8 nan_code) {
  const u32 sign = __float_as_uint(x) >> 31 << 7;
  if (x != x) return static_cast<u8>(sign | nan_code);
  const float magnitude = fminf(fabsf(x), largest);
  const float smallest_normal = __uint_as_float(static_cast<u32>(128 - kBias) << 23);
  if (magnitude < smallest_normal) {
    // Multiples of 2^(1 - bias - mantissa); a carry into the exponent field is the right encoding.
    const float scale = __uint_as_float(static_cast<u32>(127 + kBias - 1 + kMantissa) << 23);
    return static_cast<u8>(sign | static_cast<u32>(__float2int_rn(magnitude * scale)));
  }
  constexpr int kDropped = 23 - kMantissa;
  u32 bits = __float_as_uint(magnitude);
  bits += (1U << (kDropped - 1)) - 1U + (bits >> kDropped & 1U);
  return static_cast<u8>(sign |
                         ((bits >> kDropped) - (static_cast<u32>(127 - kBias) << kMantissa)));
}

template <>
struct Element<DTypeCode::kF8E4M3> {
  using Word = u8;
  static __device__ __forceinline__ float widen(Word w) {
    // Exponent bias 7 against 127: the shifted bits are the value times 2^-120, subnormals too.
    const float magnitude =
        __uint_as_float((w & 0x7FU) << 20) * __uint_as_float((127U + 120U) << 23);
    const float value = (w & 0x7FU) == 0x7FU ? __uint_as_float(0x7FC00000U) : magnitude;
    return (w & 0x80U) != 0 ? -value : value;
  }
  static __device__ __forceinline__ Word narrow(float x) {
    return narrow_small_float<3, 7>(x, 448.0F, 0x7F);
  }
  static __device__ u32 narrow_pair(float low, float high);  // 16-bit types only
};

template <>
struct Element<DTypeCode::kF8E5M2> {
  using Word = u8;
  static __device__ __forceinline__ float widen(Word w) {
    // The upper half of an f16.
    return Element<DTypeCode::kF16>::widen(static_cast<u16>(static_cast<u32>(w) << 8));
  }
  static __device__ __forceinline__ Word narrow(float x) {
    return narrow_small_float<2, 15>(x, 57344.0F, 0x7F);
  }
  static __device__ u32 narrow_pair(float low, float high);  // 16-bit types only
};

template <DTypeCode kCode>
inline constexpr i32 kSizeOf = static_cast<i32>(sizeof(typename Element<kCode>::Word));

template <DTypeCode kCode>
inline constexpr bool kIsFp8 = kCode == DTypeCode::kF8E4M3 || kCode == DTypeCode::kF8E5M2;

}  // namespace plait::device
