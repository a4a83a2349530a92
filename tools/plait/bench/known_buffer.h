// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/device.h"
#include "plait/bench/cuda_timer.h"

namespace plait::bench {

/// Normal bf16 values on the device whose every element the host knows: a few megabytes are drawn
/// and repeated, because what matters is that bits toggle, and drawing gigabytes takes minutes.
class KnownBuffer {
 public:
  static constexpr std::int64_t kElement = 2;  // bytes

  KnownBuffer() = default;
  /// Buffers of different `stream` hold different values at the same place.
  KnownBuffer(const CudaTimer& timer, std::int64_t elements, int stream, const char* what);
  cuda::CuDevicePtr address(std::int64_t element = 0) const noexcept {
    return buffer_.address() + static_cast<cuda::CuDevicePtr>(element * kElement);
  }
  std::int64_t bytes() const noexcept { return buffer_.bytes(); }
  double value(std::int64_t element) const;

 private:
  cuda::DeviceBuffer buffer_;
  std::int64_t shift_ = 0;
};

}  // namespace plait::bench
