// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>

#include "plait/dtype.h"

namespace plait {

/// Where memory lives. The values are DLPack's, so that conversion is a cast.
enum class DeviceKind : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3 };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  std::int32_t index = 0;
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

inline constexpr int kMaxRank = 6;

/// A non-owning view of strided memory; the data must outlive every use. Strides count
/// elements, may be zero or negative, and need not be ordered. Same meaning as DLTensor
/// (byte_offset already added to `data`). Inputs are passed as Tensors too and never written.
struct Tensor {
  void* data = nullptr;  // a multiple of the size of an element
  DType dtype = DType::kF32;
  Device device;
  std::int32_t rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  /// A row-major tensor over `data`. One of more than kMaxRank axes keeps their number alone and
  /// is refused wherever it is given.
  static Tensor contiguous(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                           Device device = {}) {
    Tensor t;
    t.data = const_cast<void*>(data);
    t.dtype = dtype;
    t.device = device;
    t.rank = static_cast<std::int32_t>(shape.size());
    if (t.rank > kMaxRank) return t;
    std::copy(shape.begin(), shape.end(), t.shape.begin());
    std::int64_t stride = 1;
    for (std::int32_t axis = t.rank - 1; axis >= 0; --axis) {
      t.strides[static_cast<std::size_t>(axis)] = stride;
      stride *= t.shape[static_cast<std::size_t>(axis)];
    }
    return t;
  }

  bool defined() const noexcept { return data != nullptr || rank > 0; }
  std::int64_t size() const noexcept {
    std::int64_t count = 1;
    for (std::int32_t axis = 0; axis < rank; ++axis) count *= shape[static_cast<std::size_t>(axis)];
    return count;
  }
};

}  // namespace plait
