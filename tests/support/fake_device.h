// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What stands behind the calls of fake_cuda.cpp: a library that poses as libcuda brings one
// implementation, which records launches (recording_device.cpp) or executes them
// (tests/emulator/device.cpp).
#pragma once

#include <functional>

#include "cuda/driver_types.h"

namespace plait::cuda::fake {

inline constexpr CuResult kLaunchFailed = 719;

/// What cuDriverGetVersion says: 13000 for CUDA 13.0.
int driver_version();
const char* device_name();
int device_attribute(CuDeviceAttribute attribute);
/// What cuGetErrorString says.
const char* error_text();

/// Null: refused.
void* load_module(const void* image);
void unload_module(void* module);
void* find_function(void* module, const char* name);

using Work = std::function<CuResult()>;
/// The launch as something that can be done any number of times; keeps the arguments' values.
Work prepare_launch(const CuLaunchConfig& config, CuFunction function, void** arguments,
                    bool captured);

/// The operands of cuTensorMapEncodeTiled.
struct TensorMapRequest {
  CuTensorMapDataType type;
  std::uint32_t rank;
  void* address;
  const std::uint64_t* extents;
  const std::uint64_t* strides;
  const std::uint32_t* box;
  const std::uint32_t* steps;
  CuTensorMapInterleave interleave;
  CuTensorMapSwizzle swizzle;
  CuTensorMapOobFill fill;
};
CuResult encode_tensor_map(const TensorMapRequest& request, CuTensorMap* map);

}  // namespace plait::cuda::fake
