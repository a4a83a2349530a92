// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/tensor_maps.h"

#include <xxhash.h>

#include <type_traits>

namespace plait::cuda {

const CuTensorMap& TensorMaps::get(const Driver& driver, const TensorMapRequest& request) {
  static_assert(std::has_unique_object_representations_v<TensorMapRequest>, "hashed as bytes");
  Place& place = places_[XXH3_64bits(&request, sizeof(request)) % kPlaces];
  if (request.address != nullptr && place.request == request) return place.map;
  place.request = {};  // in case the driver refuses
  constexpr std::array<std::uint32_t, 5> kSteps{1, 1, 1, 1, 1};
  driver.check(
      driver.tensor_map_encode_tiled(
          &place.map, request.type, 5, const_cast<void*>(request.address), request.extents.data(),
          request.strides.data(), request.box.data(), kSteps.data(), CuTensorMapInterleave::kNone,
          CuTensorMapSwizzle::k128B, request.promotion, request.outside),
      "cuTensorMapEncodeTiled");
  place.request = request;
  return place.map;
}

}  // namespace plait::cuda
