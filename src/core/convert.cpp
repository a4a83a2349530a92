// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/convert.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace plait {
namespace {

// A binary format of at most 16 bits: sign, exponent, mantissa. `max_bits` encodes the largest
// finite magnitude; what follows it is infinity (`infinity_bits`) or, without infinities, NaN.
struct Format {
  int mantissa_bits;
  int min_exponent;  // of the smallest normal number
  std::uint32_t sign_bit;
  std::uint32_t max_bits;
  std::uint32_t infinity_bits;  // equals nan_bits where the format has no infinity
  std::uint32_t nan_bits;
};

constexpr Format kF16Format{10, -14, 0x8000u, 0x7BFFu, 0x7C00u, 0x7E00u};
constexpr Format kBF16Format{7, -126, 0x8000u, 0x7F7Fu, 0x7F80u, 0x7FC0u};
constexpr Format kE4M3Format{3, -6, 0x80u, 0x7Eu, 0x7Fu, 0x7Fu};
constexpr Format kE5M2Format{2, -14, 0x80u, 0x7Bu, 0x7Cu, 0x7Eu};

double decode_small(const Format& format, std::uint32_t bits) noexcept {
  const bool negative = (bits & format.sign_bit) != 0;
  const std::uint32_t magnitude = bits & (format.sign_bit - 1);
  double value;
  if (magnitude > format.max_bits) {
    const bool infinite =
        magnitude == format.infinity_bits && format.infinity_bits != format.nan_bits;
    value = infinite ? std::numeric_limits<double>::infinity()
                     : std::numeric_limits<double>::quiet_NaN();
  } else {
    const std::uint32_t hidden = 1u << format.mantissa_bits;
    const int biased = static_cast<int>(magnitude >> format.mantissa_bits);
    const std::uint32_t fraction = magnitude & (hidden - 1);
    value = biased == 0 ? std::ldexp(fraction, format.min_exponent - format.mantissa_bits)
                        : std::ldexp(hidden + fraction,
                                     biased - 1 + format.min_exponent - format.mantissa_bits);
  }
  return negative ? -value : value;
}

std::uint32_t encode_small(const Format& format, double value, Overflow overflow) noexcept {
  const auto raw = std::bit_cast<std::uint64_t>(value);
  const std::uint32_t sign = (raw >> 63) != 0 ? format.sign_bit : 0u;
  const int biased = static_cast<int>((raw >> 52) & 0x7FF);
  const std::uint64_t fraction = raw & ((std::uint64_t{1} << 52) - 1);
  const std::uint32_t beyond =
      overflow == Overflow::kSaturate ? format.max_bits : format.infinity_bits;
  if (biased == 0x7FF) return sign | (fraction != 0 ? format.nan_bits : beyond);
  if (biased == 0) return sign;  // zero or below 2^-1022: far under half of any quantum here

  const int exponent = biased - 1023;
  const std::uint64_t significand = (std::uint64_t{1} << 52) | fraction;
  // The quantum of the target around `value` is 2^(max(exponent, min) - mantissa_bits).
  const int scale = exponent > format.min_exponent ? exponent : format.min_exponent;
  const int drop = scale - format.mantissa_bits - (exponent - 52);
  if (drop > 53) return sign;  // less than half of the smallest subnormal
  std::uint64_t quotient = significand >> drop;
  const std::uint64_t rest = significand & ((std::uint64_t{1} << drop) - 1);
  const std::uint64_t half = std::uint64_t{1} << (drop - 1);
  if (rest > half || (rest == half && (quotient & 1) != 0)) ++quotient;

  // Adding, not or-ing, lets a carry out of the mantissa move on to the next exponent.
  const auto base = static_cast<std::uint64_t>(scale - format.min_exponent) << format.mantissa_bits;
  const std::uint64_t magnitude = base + quotient;
  if (magnitude > format.max_bits) return sign | beyond;
  return sign | static_cast<std::uint32_t>(magnitude);
}

const Format& format_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBF16: return kBF16Format;
    case DType::kF8E4M3: return kE4M3Format;
    case DType::kF8E5M2: return kE5M2Format;
    default: return kF16Format;
  }
}

}  // namespace

double max_finite(DType dtype) noexcept {
  if (dtype == DType::kF32) return std::numeric_limits<float>::max();
  return decode_small(format_of(dtype), format_of(dtype).max_bits);
}

double decode(DType dtype, std::uint32_t bits) noexcept {
  if (dtype == DType::kF32) return static_cast<double>(std::bit_cast<float>(bits));
  return decode_small(format_of(dtype), bits);
}

std::uint32_t encode(DType dtype, double value, Overflow overflow) noexcept {
  if (dtype != DType::kF32) return encode_small(format_of(dtype), value, overflow);
  if (std::isnan(value)) return std::signbit(value) ? 0xFFC00000u : 0x7FC00000u;
  const float rounded = static_cast<float>(value);
  if (overflow == Overflow::kSaturate && std::isinf(rounded)) {
    return std::bit_cast<std::uint32_t>(std::copysign(std::numeric_limits<float>::max(), rounded));
  }
  return std::bit_cast<std::uint32_t>(rounded);
}

float f16_to_f32(std::uint16_t bits) noexcept {
  return static_cast<float>(decode_small(kF16Format, bits));
}
float bf16_to_f32(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
float f8_e4m3_to_f32(std::uint8_t bits) noexcept {
  return static_cast<float>(decode_small(kE4M3Format, bits));
}
float f8_e5m2_to_f32(std::uint8_t bits) noexcept {
  return static_cast<float>(decode_small(kE5M2Format, bits));
}

std::uint16_t f32_to_f16(float value, Overflow overflow) noexcept {
  return static_cast<std::uint16_t>(encode_small(kF16Format, static_cast<double>(value), overflow));
}
std::uint16_t f32_to_bf16(float value, Overflow overflow) noexcept {
  return static_cast<std::uint16_t>(
      encode_small(kBF16Format, static_cast<double>(value), overflow));
}
std::uint8_t f32_to_f8_e4m3(float value, Overflow overflow) noexcept {
  return static_cast<std::uint8_t>(encode_small(kE4M3Format, static_cast<double>(value), overflow));
}
std::uint8_t f32_to_f8_e5m2(float value, Overflow overflow) noexcept {
  return static_cast<std::uint8_t>(encode_small(kE5M2Format, static_cast<double>(value), overflow));
}

double load_element(DType dtype, const void* data, std::int64_t index) noexcept {
  const auto* bytes = static_cast<const unsigned char*>(data) + index * size_of(dtype);
  switch (size_of(dtype)) {
    case 4: {
      std::uint32_t bits;
      std::memcpy(&bits, bytes, sizeof(bits));
      return decode(dtype, bits);
    }
    case 2: {
      std::uint16_t bits;
      std::memcpy(&bits, bytes, sizeof(bits));
      return decode(dtype, bits);
    }
    default: return decode(dtype, *bytes);
  }
}

void store_element(DType dtype, void* data, std::int64_t index, double value,
                   Overflow overflow) noexcept {
  auto* bytes = static_cast<unsigned char*>(data) + index * size_of(dtype);
  const std::uint32_t bits = encode(dtype, value, overflow);
  switch (size_of(dtype)) {
    case 4: std::memcpy(bytes, &bits, sizeof(bits)); return;
    case 2: {
      const auto narrow = static_cast<std::uint16_t>(bits);
      std::memcpy(bytes, &narrow, sizeof(narrow));
      return;
    }
    default: *bytes = static_cast<unsigned char>(bits); return;
  }
}

}  // namespace plait
