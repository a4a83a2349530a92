// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/tensor_maps.h"

#include <gtest/gtest.h>

#include "plait/error.h"

namespace plait::cuda {
namespace {

int encodings = 0;

/// A driver that writes its count and the address into a map, and refuses address 13.
Driver counting_driver() {
  Driver driver;
  encodings = 0;
  driver.get_error_name = [](CuResult, const char** name) {
    *name = "refused";
    return CuResult{kCuSuccess};
  };
  driver.get_error_string = driver.get_error_name;
  driver.tensor_map_encode_tiled =
      [](CuTensorMap* map, CuTensorMapDataType, std::uint32_t, void* address, const std::uint64_t*,
         const std::uint64_t*, const std::uint32_t*, const std::uint32_t*, CuTensorMapInterleave,
         CuTensorMapSwizzle, CuTensorMapL2Promotion, CuTensorMapOobFill) {
        ++encodings;
        *map = {};
        map->opaque[0] = static_cast<std::uint64_t>(encodings);
        map->opaque[1] = reinterpret_cast<std::uintptr_t>(address);
        return CuResult{map->opaque[1] == 13 ? kCuErrorInvalidValue : kCuSuccess};
      };
  return driver;
}

TensorMapRequest request_at(std::uintptr_t address) {
  TensorMapRequest request;
  request.address = reinterpret_cast<const void*>(address);
  request.extents = {64, 16, 2, 8, 1000};
  request.strides = {256, 128, 4096, 65536};
  request.box = {64, 16, 2, 1, 1};
  return request;
}

TEST(TensorMaps, AreEncodedOncePerRequest) {
  const Driver driver = counting_driver();
  TensorMaps maps;
  EXPECT_EQ(maps.get(driver, request_at(4096)).opaque[0], 1u);
  EXPECT_EQ(maps.get(driver, request_at(4096)).opaque[0], 1u);
  TensorMapRequest other = request_at(4096);
  other.extents[4] = 2000;  // a pool that has grown in place
  EXPECT_EQ(maps.get(driver, other).opaque[0], 2u);
  other.box[1] = 8;
  EXPECT_EQ(maps.get(driver, other).opaque[0], 3u);
}

TEST(TensorMaps, MoreThanThereIsRoomForAreRightAllTheSame) {
  const Driver driver = counting_driver();
  TensorMaps maps;
  for (int round = 0; round < 2; ++round) {
    for (std::uintptr_t i = 1; i <= 4 * TensorMaps::kPlaces; ++i) {
      ASSERT_EQ(maps.get(driver, request_at(16 * i)).opaque[1], 16 * i);
    }
  }
}

TEST(TensorMaps, RefusedMapIsNotRemembered) {
  const Driver driver = counting_driver();
  TensorMaps maps;
  EXPECT_THROW(maps.get(driver, request_at(13)), Error);
  EXPECT_THROW(maps.get(driver, request_at(13)), Error);
  EXPECT_EQ(encodings, 2);
}

}  // namespace
}  // namespace plait::cuda
