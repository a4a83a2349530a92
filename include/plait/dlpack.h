// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Conversion between plait::Tensor and DLPack's DLTensor. Needs <dlpack/dlpack.h>; nothing else of
// the public surface does, so include it only where tensors cross to or from another library.
#pragma once

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "plait/error.h"
#include "plait/tensor.h"

namespace plait {
namespace dlpack_detail {

// Type codes that newer DLPack headers name kDLFloat8_e4m3fn and kDLFloat8_e5m2; spelled as
// numbers so that older headers compile too.
inline constexpr std::uint8_t kFloat8E4M3Fn = 10;
inline constexpr std::uint8_t kFloat8E5M2 = 12;

inline DLDataType data_type(std::uint8_t code, std::uint8_t bits) noexcept {
  DLDataType type{};
  type.code = code;
  type.bits = bits;
  type.lanes = 1;
  return type;
}

}  // namespace dlpack_detail

/// The DLPack type of `dtype`.
inline DLDataType to_dlpack(DType dtype) noexcept {
  using dlpack_detail::data_type;
  switch (dtype) {
    case DType::kF32: return data_type(kDLFloat, 32);
    case DType::kF16: return data_type(kDLFloat, 16);
    case DType::kBF16: return data_type(kDLBfloat, 16);
    case DType::kF8E4M3: return data_type(dlpack_detail::kFloat8E4M3Fn, 8);
    case DType::kF8E5M2: return data_type(dlpack_detail::kFloat8E5M2, 8);
    case DType::kI32: return data_type(kDLInt, 32);
    case DType::kI64: return data_type(kDLInt, 64);
    case DType::kU8: return data_type(kDLUInt, 8);
  }
  return data_type(kDLFloat, 32);
}

/// A DLTensor over the memory of `tensor`. It borrows `shape` and `strides` from `tensor`, which
/// must outlive it.
inline DLTensor to_dlpack(Tensor& tensor) noexcept {
  DLTensor out{};
  out.data = tensor.data;
  out.device.device_type = static_cast<DLDeviceType>(tensor.device.kind);
  out.device.device_id = tensor.device.index;
  out.ndim = tensor.rank;
  out.dtype = to_dlpack(tensor.dtype);
  out.shape = tensor.shape.data();
  out.strides = tensor.strides.data();
  out.byte_offset = 0;
  return out;
}

/// A Tensor over the memory of `tensor`; null strides mean row-major, as in DLPack. Throws
/// Error{kInvalidArgument} naming `field` for more than kMaxRank axes or a negative extent, and
/// Error{kUnsupported} for a device or element type that Plait does not have.
inline Tensor from_dlpack(const DLTensor& tensor, std::string_view field) {
  const std::string name(field);
  Tensor out;
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
    throw Error(ErrorCode::kInvalidArgument, name + ".ndim", std::to_string(tensor.ndim),
                "0 to " + std::to_string(kMaxRank) + " axes");
  }
  switch (static_cast<int>(tensor.device.device_type)) {
    case static_cast<int>(DeviceKind::kCpu): out.device.kind = DeviceKind::kCpu; break;
    case static_cast<int>(DeviceKind::kCuda): out.device.kind = DeviceKind::kCuda; break;
    case static_cast<int>(DeviceKind::kCudaHost): out.device.kind = DeviceKind::kCudaHost; break;
    default:
      throw Error(
          ErrorCode::kUnsupported, name + ".device",
          "DLPack device type " + std::to_string(static_cast<int>(tensor.device.device_type)),
          "CPU (1), CUDA (2) or CUDA host (3)");
  }
  out.device.index = tensor.device.device_id;
  bool known = false;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2,
                      DType::kI32, DType::kI64, DType::kU8}) {
    const DLDataType type = to_dlpack(dtype);
    if (type.code == tensor.dtype.code && type.bits == tensor.dtype.bits &&
        tensor.dtype.lanes == 1) {
      out.dtype = dtype;
      known = true;
    }
  }
  if (!known) {
    throw Error(ErrorCode::kUnsupported, name + ".dtype",
                "DLPack code " + std::to_string(tensor.dtype.code) + ", " +
                    std::to_string(tensor.dtype.bits) + " bits, " +
                    std::to_string(tensor.dtype.lanes) + " lanes",
                "a single-lane f32, f16, bf16, f8_e4m3, f8_e5m2, i32, i64 or u8");
  }
  out.rank = tensor.ndim;
  std::int64_t stride = 1;
  for (std::int32_t axis = out.rank - 1; axis >= 0; --axis) {
    const auto a = static_cast<std::size_t>(axis);
    if (tensor.shape[a] < 0) {
      throw Error(ErrorCode::kInvalidArgument, name + ".shape[" + std::to_string(axis) + "]",
                  std::to_string(tensor.shape[a]), "a non-negative extent");
    }
    out.shape[a] = tensor.shape[a];
    out.strides[a] = tensor.strides != nullptr ? tensor.strides[a] : stride;
    stride *= tensor.shape[a] > 0 ? tensor.shape[a] : 1;
  }
  out.data =
      tensor.data == nullptr
          ? nullptr
          : static_cast<void*>(static_cast<unsigned char*>(tensor.data) + tensor.byte_offset);
  return out;
}

}  // namespace plait
