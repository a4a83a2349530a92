// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What the emulator keeps in a CUtensorMap.
#pragma once

#include <cstdint>

#include "cuda/driver_types.h"

namespace plait::emulator {

struct TensorMap {
  static constexpr std::uint64_t kMagic = 0x50414D524F534E54;

  std::uint64_t magic;
  std::uint64_t address;
  std::uint64_t stride[4];  // bytes, of axes 1 up
  std::uint32_t extent[5];
  std::uint16_t box[5];
  std::uint8_t element_bytes;
  bool nan_outside;

  bool valid() const { return magic == kMagic; }
  std::uint32_t row_bytes() const { return std::uint32_t{box[0]} * element_bytes; }
  std::uint32_t box_bytes() const { return row_bytes() * box[1] * box[2] * box[3] * box[4]; }
};
static_assert(sizeof(TensorMap) <= sizeof(cuda::CuTensorMap));

}  // namespace plait::emulator
