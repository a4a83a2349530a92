// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The declarations of driver_types.h against NVIDIA's own, where a toolkit is installed: all of
// this file stands under that condition, and nothing else does.
#if __has_include("/usr/local/cuda/include/cuda.h")

#include "cuda/driver_types.h"

#include <gtest/gtest.h>

#include <cstddef>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include "/usr/local/cuda/include/cuda.h"
#pragma GCC diagnostic pop

namespace plait::cuda {
namespace {

template <typename Ours, typename Theirs>
void expect_value(Ours ours, Theirs theirs, const char* name) {
  EXPECT_EQ(static_cast<long>(ours), static_cast<long>(theirs)) << name;
}

TEST(Driver, DeclarationsAgreeWithTheToolkit) {
#define PLAIT_SAME(ours, theirs) expect_value(ours, theirs, #theirs)
  PLAIT_SAME(kCuErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
  PLAIT_SAME(kCuErrorNotReady, CUDA_ERROR_NOT_READY);
  PLAIT_SAME(kCuErrorStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  PLAIT_SAME(kCuErrorStreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  PLAIT_SAME(kCuErrorStreamCaptureUnjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  PLAIT_SAME(kCuErrorStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  using D = CuDeviceAttribute;
  PLAIT_SAME(D::kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  PLAIT_SAME(D::kL2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  PLAIT_SAME(D::kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  PLAIT_SAME(D::kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  PLAIT_SAME(D::kClockRateKhz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  PLAIT_SAME(D::kMemoryClockRateKhz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
  PLAIT_SAME(D::kMemoryBusWidthBits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  PLAIT_SAME(D::kMaxSharedMemoryPerBlockOptin,
             CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  PLAIT_SAME(D::kMaxSharedMemoryPerMultiprocessor,
             CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  PLAIT_SAME(D::kReservedSharedMemoryPerBlock,
             CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
  PLAIT_SAME(D::kMaxRegistersPerMultiprocessor,
             CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  PLAIT_SAME(D::kMaxThreadsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  using F = CuFunctionAttribute;
  PLAIT_SAME(F::kMaxDynamicSharedSizeBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  PLAIT_SAME(F::kPreferredSharedMemoryCarveout, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  PLAIT_SAME(F::kNonPortableClusterSizeAllowed,
             CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
  PLAIT_SAME(CuPointerAttribute::kMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
  PLAIT_SAME(CuPointerAttribute::kDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  PLAIT_SAME(CuMemoryType::kHost, CU_MEMORYTYPE_HOST);
  PLAIT_SAME(CuMemoryType::kUnified, CU_MEMORYTYPE_UNIFIED);
  PLAIT_SAME(CuCaptureStatus::kActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  PLAIT_SAME(CuCaptureStatus::kInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  PLAIT_SAME(CuCaptureMode::kThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  PLAIT_SAME(kCuEventDisableTiming, CU_EVENT_DISABLE_TIMING);
  PLAIT_SAME(kCuStreamNonBlocking, CU_STREAM_NON_BLOCKING);
  PLAIT_SAME(kCuUserObjectNoDestructorSync, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  PLAIT_SAME(kCuGraphUserObjectMove, CU_GRAPH_USER_OBJECT_MOVE);
  using L = CuLaunchAttributeId;
  PLAIT_SAME(L::kClusterDimension, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  PLAIT_SAME(L::kProgrammaticStreamSerialization,
             CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
  PLAIT_SAME(CuTensorMapDataType::kBF16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  PLAIT_SAME(CuTensorMapDataType::kF16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
  PLAIT_SAME(CuTensorMapDataType::kF32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
  PLAIT_SAME(CuTensorMapSwizzle::k128B, CU_TENSOR_MAP_SWIZZLE_128B);
  PLAIT_SAME(CuTensorMapL2Promotion::k256B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  PLAIT_SAME(CuTensorMapOobFill::kNan, CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);
  PLAIT_SAME(sizeof(CuLaunchConfig), sizeof(CUlaunchConfig));
  PLAIT_SAME(offsetof(CuLaunchConfig, stream), offsetof(CUlaunchConfig, hStream));
  PLAIT_SAME(offsetof(CuLaunchConfig, attribute_count), offsetof(CUlaunchConfig, numAttrs));
  PLAIT_SAME(sizeof(CuLaunchAttribute), sizeof(CUlaunchAttribute));
  PLAIT_SAME(offsetof(CuLaunchAttribute, value), offsetof(CUlaunchAttribute, value));
  PLAIT_SAME(sizeof(CuKernelNode), sizeof(CUDA_KERNEL_NODE_PARAMS));
  PLAIT_SAME(offsetof(CuKernelNode, arguments), offsetof(CUDA_KERNEL_NODE_PARAMS, kernelParams));
  PLAIT_SAME(offsetof(CuKernelNode, context), offsetof(CUDA_KERNEL_NODE_PARAMS, ctx));
#if CUDA_VERSION >= 12030
  PLAIT_SAME(sizeof(CuGraphEdge), sizeof(CUgraphEdgeData));
  PLAIT_SAME(offsetof(CuGraphEdge, type), offsetof(CUgraphEdgeData, type));
  PLAIT_SAME(kCuKernelPortProgrammatic, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
  PLAIT_SAME(kCuGraphEdgeProgrammatic, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
#endif
  PLAIT_SAME(sizeof(CuTensorMap), sizeof(CUtensorMap));
  PLAIT_SAME(alignof(CuTensorMap), alignof(CUtensorMap));
#undef PLAIT_SAME
}

}  // namespace
}  // namespace plait::cuda

#endif
