// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cuda/driver.h"

namespace plait::cuda {

/// What a tensor map of rank 5 is made of. Rows of 128 bytes, the innermost axis, are swizzled.
struct TensorMapRequest {
  const void* address = nullptr;
  std::array<std::uint64_t, 5> extents{};
  std::array<std::uint64_t, 4> strides{};  // bytes, of all axes but the innermost
  std::array<std::uint32_t, 5> box{};
  CuTensorMapDataType type{};
  CuTensorMapL2Promotion promotion{};
  CuTensorMapOobFill outside{};

  friend bool operator==(const TensorMapRequest&, const TensorMapRequest&) = default;
};

/// Remembers maps by what they are made of: a layer's operands are the same at every step, and
/// encoding a map costs more than finding it. Not thread safe.
class TensorMaps {
 public:
  /// Room for the K and V maps of two tile classes of some 100 layers; all memory is allocated
  /// here. A map whose place another one takes is encoded again.
  static constexpr std::size_t kPlaces = 512;
  TensorMaps() : places_(kPlaces) {}

  /// Valid until the next call.
  const CuTensorMap& get(const Driver& driver, const TensorMapRequest& request);

 private:
  struct Place {
    TensorMapRequest request;  // without an address: nothing is here
    CuTensorMap map{};
  };
  std::vector<Place> places_;
};

}  // namespace plait::cuda
