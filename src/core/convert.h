// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Exact conversions between the floating element types: decoding is exact, encoding rounds once,
// to nearest with ties to even. Scalar and plain on purpose; they define the right answer that
// the SIMD and device conversions are tested against.
#pragma once

#include <cstdint>

#include "plait/dtype.h"

namespace plait {

/// What to do with a finite value beyond the largest finite one of the target, and with infinity.
enum class Overflow : std::uint8_t {
  kIeee,      // infinity, or NaN where the format has no infinity (f8_e4m3)
  kSaturate,  // the largest finite value; NaN stays NaN
};

/// What computed values do, outputs and appended tokens alike.
constexpr Overflow overflow_of(DType dtype) noexcept {
  return size_of(dtype) == 1 ? Overflow::kSaturate : Overflow::kIeee;
}

/// Largest finite value of a floating dtype.
double max_finite(DType dtype) noexcept;

/// Value of one encoded element; `bits` holds it in its low bytes. Exact for every dtype.
double decode(DType dtype, std::uint32_t bits) noexcept;

/// Encoding of `value`, rounded once. NaN gives the canonical quiet NaN with the sign kept.
std::uint32_t encode(DType dtype, double value, Overflow overflow = Overflow::kIeee) noexcept;

float f16_to_f32(std::uint16_t bits) noexcept;
float bf16_to_f32(std::uint16_t bits) noexcept;
float f8_e4m3_to_f32(std::uint8_t bits) noexcept;
float f8_e5m2_to_f32(std::uint8_t bits) noexcept;

std::uint16_t f32_to_f16(float value, Overflow overflow = Overflow::kIeee) noexcept;
std::uint16_t f32_to_bf16(float value, Overflow overflow = Overflow::kIeee) noexcept;
std::uint8_t f32_to_f8_e4m3(float value, Overflow overflow = Overflow::kIeee) noexcept;
std::uint8_t f32_to_f8_e5m2(float value, Overflow overflow = Overflow::kIeee) noexcept;

/// Element `index` of a dense array of `dtype`, as a double. Floating dtypes only.
double load_element(DType dtype, const void* data, std::int64_t index) noexcept;

/// Rounds `value` into element `index` of a dense array of `dtype`. Floating dtypes only.
void store_element(DType dtype, void* data, std::int64_t index, double value,
                   Overflow overflow = Overflow::kIeee) noexcept;

}  // namespace plait
