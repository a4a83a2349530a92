// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/dlpack.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace plait {
namespace {

TEST(DLPack, RoundTripKeepsEverything) {
  std::vector<float> data(24);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2,
                      DType::kI32, DType::kI64, DType::kU8}) {
    Tensor tensor = Tensor::contiguous(data.data(), dtype, {2, 3}, {DeviceKind::kCuda, 3});
    tensor.strides = {1, -2};
    const DLTensor borrowed = to_dlpack(tensor);
    const Tensor back = from_dlpack(borrowed, "q");
    EXPECT_EQ(back.data, tensor.data);
    EXPECT_EQ(back.dtype, dtype);
    EXPECT_EQ(back.device, tensor.device);
    EXPECT_EQ(back.rank, 2);
    EXPECT_EQ(back.shape, tensor.shape);
    EXPECT_EQ(back.strides, tensor.strides);
  }
}

TEST(DLPack, NullStridesAndByteOffset) {
  std::vector<std::uint16_t> data(64);
  std::int64_t shape[] = {2, 3, 4};
  DLTensor tensor{};
  tensor.data = data.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 3;
  tensor.dtype = {kDLFloat, 16, 1};
  tensor.shape = shape;
  tensor.byte_offset = 10;
  const Tensor out = from_dlpack(tensor, "k");
  EXPECT_EQ(out.data, data.data() + 5);
  EXPECT_EQ(out.strides[0], 12);
  EXPECT_EQ(out.strides[1], 4);
  EXPECT_EQ(out.strides[2], 1);
}

TEST(DLPack, RefusesWhatPlaitDoesNotHave) {
  std::int64_t shape[] = {1, 1, 1, 1, 1, 1, 1};
  DLTensor tensor{};
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 7;
  tensor.dtype = {kDLFloat, 32, 1};
  tensor.shape = shape;
  const auto refused_field = [&] {
    try {
      from_dlpack(tensor, "v");
    } catch (const Error& error) {
      return error.field();
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused_field(), "v.ndim");
  tensor.ndim = 1;
  tensor.dtype = {kDLFloat, 64, 1};
  EXPECT_EQ(refused_field(), "v.dtype");
  tensor.dtype = {kDLFloat, 32, 4};
  EXPECT_EQ(refused_field(), "v.dtype");
  tensor.dtype = {kDLFloat, 32, 1};
  tensor.device.device_type = kDLMetal;
  EXPECT_EQ(refused_field(), "v.device");
  tensor.device.device_type = kDLCPU;
  shape[0] = -1;
  EXPECT_EQ(refused_field(), "v.shape[0]");
}

}  // namespace
}  // namespace plait
