// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace plait {

/// Element types. The floating ones carry data; the integer ones carry indices and mask bits.
/// `f8_e4m3` is the "fn" flavour of the OCP OFP8 standard: no infinities, largest value 448.
enum class DType : std::uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kF8E4M3 = 3,
  kF8E5M2 = 4,
  kI32 = 5,
  kI64 = 6,
  kU8 = 7,
};

/// Size of one element in bytes.
constexpr int size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kI64: return 8;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kU8: return 1;
  }
  return 0;
}

constexpr bool is_float(DType dtype) noexcept { return dtype <= DType::kF8E5M2; }

/// The name used in problem files and messages: "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "i32"
/// ...
std::string_view to_string(DType dtype) noexcept;

/// Inverse of `to_string`; throws Error{kInvalidArgument} naming `field` for any other text.
DType parse_dtype(std::string_view text, std::string_view field);

}  // namespace plait
