// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace plait::emulator {

/// The value of the low 16 bits.
inline float widen16(bool bf16, std::uint32_t bits) {
  if (bf16) return std::bit_cast<float>(bits << 16);
  return static_cast<float>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(bits)));
}

}  // namespace plait::emulator
