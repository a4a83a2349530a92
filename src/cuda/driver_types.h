// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA driver's binary interface that Plait uses, declared here so that no CUDA
// header is needed to build. Values and layouts follow the public cuda.h of CUDA 12 and 13,
// whose binary interface is stable; tests/cuda/driver_types_test.cpp compares them with a toolkit's
// header where one is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plait::cuda {

using CuResult = int;
using CuDevice = int;
using CuDevicePtr = unsigned long long;

using CuContext = struct CuContextOpaque*;
using CuModule = struct CuModuleOpaque*;
using CuFunction = struct CuFunctionOpaque*;
using CuStream = struct CuStreamOpaque*;
using CuEvent = struct CuEventOpaque*;
using CuGraph = struct CuGraphOpaque*;
using CuGraphExec = struct CuGraphExecOpaque*;
using CuGraphNode = struct CuGraphNodeOpaque*;
using CuUserObject = struct CuUserObjectOpaque*;

enum : CuResult {
  kCuSuccess = 0,
  kCuErrorInvalidValue = 1,
  kCuErrorOutOfMemory = 2,
  kCuErrorNoDevice = 100,
  kCuErrorNotReady = 600,
  kCuErrorStreamCaptureUnsupported = 900,
  kCuErrorStreamCaptureInvalidated = 901,
  kCuErrorStreamCaptureUnjoined = 904,
  kCuErrorStreamCaptureImplicit = 906,
};

enum class CuDeviceAttribute : int {
  kMaxSharedMemoryPerBlock = 8,
  kClockRateKhz = 13,
  kMultiprocessorCount = 16,
  kMemoryClockRateKhz = 36,
  kMemoryBusWidthBits = 37,
  kL2CacheSize = 38,
  kMaxThreadsPerMultiprocessor = 39,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerMultiprocessor = 81,
  kMaxRegistersPerMultiprocessor = 82,
  kMaxSharedMemoryPerBlockOptin = 97,
  kReservedSharedMemoryPerBlock = 111,
};

enum class CuFunctionAttribute : int {
  kSharedSizeBytes = 1,
  kLocalSizeBytes = 3,
  kNumRegs = 4,
  kMaxDynamicSharedSizeBytes = 8,
  kPreferredSharedMemoryCarveout = 9,
  kNonPortableClusterSizeAllowed = 14,
};

enum class CuPointerAttribute : int {
  kMemoryType = 2,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
};

enum class CuMemoryType : unsigned { kHost = 1, kDevice = 2, kArray = 3, kUnified = 4 };

enum class CuCaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };
enum class CuCaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

inline constexpr unsigned kCuEventDisableTiming = 2;
inline constexpr unsigned kCuStreamNonBlocking = 1;
inline constexpr unsigned kCuUserObjectNoDestructorSync = 1;
inline constexpr unsigned kCuGraphUserObjectMove = 1;

enum class CuLaunchAttributeId : int {
  kIgnore = 0,
  kClusterDimension = 4,
  kProgrammaticStreamSerialization = 6,
};

union CuLaunchAttributeValue {
  char pad[64];
  struct {
    unsigned x, y, z;
  } cluster;
  int programmatic_stream_serialization;
};

struct CuLaunchAttribute {
  CuLaunchAttributeId id;
  char pad[8 - sizeof(CuLaunchAttributeId)];
  CuLaunchAttributeValue value;
};

struct CuLaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  CuStream stream;
  CuLaunchAttribute* attributes;
  unsigned attribute_count;
};

static_assert(sizeof(CuLaunchAttribute) == 72 && sizeof(CuLaunchConfig) == 56);

/// The parameters of a graph's kernel node.
struct CuKernelNode {
  CuFunction function;
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  void** arguments;  // one pointer per kernel parameter
  void** extra;
  void* kernel;  // instead of the function
  CuContext context;
};

/// How a graph's node depends on another.
struct CuGraphEdge {
  unsigned char from_port, to_port, type;
  unsigned char reserved[5];
};
inline constexpr unsigned char kCuKernelPortProgrammatic = 1;
inline constexpr unsigned char kCuGraphEdgeProgrammatic = 1;

static_assert(sizeof(CuKernelNode) == 72 && sizeof(CuGraphEdge) == 8);

/// A TMA descriptor: written by cuTensorMapEncodeTiled, passed to a kernel by value as a
/// `__grid_constant__` parameter or kept in global memory.
struct alignas(128) CuTensorMap {
  std::uint64_t opaque[16];
};

enum class CuTensorMapDataType : int { kU8 = 0, kF16 = 6, kF32 = 7, kBF16 = 9 };
enum class CuTensorMapInterleave : int { kNone = 0 };
enum class CuTensorMapSwizzle : int { kNone = 0, k32B = 1, k64B = 2, k128B = 3 };
enum class CuTensorMapL2Promotion : int { kNone = 0, k64B = 1, k128B = 2, k256B = 3 };
enum class CuTensorMapOobFill : int { kZero = 0, kNan = 1 };

using CuHostFunction = void (*)(void*);

/// X(name, symbol in libcuda, type). Every entry exists since driver 12.0.
#define PLAIT_CUDA_DRIVER_FUNCTIONS(X)                                                             \
  X(init, "cuInit", CuResult(unsigned))                                                            \
  X(driver_get_version, "cuDriverGetVersion", CuResult(int*))                                      \
  X(get_error_name, "cuGetErrorName", CuResult(CuResult, const char**))                            \
  X(get_error_string, "cuGetErrorString", CuResult(CuResult, const char**))                        \
  X(device_get, "cuDeviceGet", CuResult(CuDevice*, int))                                           \
  X(device_get_count, "cuDeviceGetCount", CuResult(int*))                                          \
  X(device_get_name, "cuDeviceGetName", CuResult(char*, int, CuDevice))                            \
  X(device_total_mem, "cuDeviceTotalMem_v2", CuResult(std::size_t*, CuDevice))                     \
  X(device_get_attribute, "cuDeviceGetAttribute", CuResult(int*, CuDeviceAttribute, CuDevice))     \
  X(primary_context_retain, "cuDevicePrimaryCtxRetain", CuResult(CuContext*, CuDevice))            \
  X(primary_context_release, "cuDevicePrimaryCtxRelease_v2", CuResult(CuDevice))                   \
  X(context_push, "cuCtxPushCurrent_v2", CuResult(CuContext))                                      \
  X(context_pop, "cuCtxPopCurrent_v2", CuResult(CuContext*))                                       \
  X(context_get_current, "cuCtxGetCurrent", CuResult(CuContext*))                                  \
  X(context_set_current, "cuCtxSetCurrent", CuResult(CuContext))                                   \
  X(context_get_device, "cuCtxGetDevice", CuResult(CuDevice*))                                     \
  X(context_synchronize, "cuCtxSynchronize", CuResult())                                           \
  X(mem_get_info, "cuMemGetInfo_v2", CuResult(std::size_t*, std::size_t*))                         \
  X(mem_alloc, "cuMemAlloc_v2", CuResult(CuDevicePtr*, std::size_t))                               \
  X(mem_free, "cuMemFree_v2", CuResult(CuDevicePtr))                                               \
  X(mem_host_alloc, "cuMemHostAlloc", CuResult(void**, std::size_t, unsigned))                     \
  X(mem_host_free, "cuMemFreeHost", CuResult(void*))                                               \
  X(memcpy_host_to_device, "cuMemcpyHtoDAsync_v2",                                                 \
    CuResult(CuDevicePtr, const void*, std::size_t, CuStream))                                     \
  X(memcpy_device_to_host, "cuMemcpyDtoHAsync_v2",                                                 \
    CuResult(void*, CuDevicePtr, std::size_t, CuStream))                                           \
  X(memcpy_device_to_device, "cuMemcpyDtoDAsync_v2",                                               \
    CuResult(CuDevicePtr, CuDevicePtr, std::size_t, CuStream))                                     \
  X(memset_d8, "cuMemsetD8Async", CuResult(CuDevicePtr, unsigned char, std::size_t, CuStream))     \
  X(memset_d32, "cuMemsetD32Async", CuResult(CuDevicePtr, unsigned, std::size_t, CuStream))        \
  X(pointer_get_attributes, "cuPointerGetAttributes",                                              \
    CuResult(unsigned, CuPointerAttribute*, void**, CuDevicePtr))                                  \
  X(module_load_data, "cuModuleLoadData", CuResult(CuModule*, const void*))                        \
  X(module_unload, "cuModuleUnload", CuResult(CuModule))                                           \
  X(module_get_function, "cuModuleGetFunction", CuResult(CuFunction*, CuModule, const char*))      \
  X(module_get_global, "cuModuleGetGlobal_v2",                                                     \
    CuResult(CuDevicePtr*, std::size_t*, CuModule, const char*))                                   \
  X(function_get_attribute, "cuFuncGetAttribute", CuResult(int*, CuFunctionAttribute, CuFunction)) \
  X(function_set_attribute, "cuFuncSetAttribute", CuResult(CuFunction, CuFunctionAttribute, int))  \
  X(occupancy_max_active_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                    \
    CuResult(int*, CuFunction, int, std::size_t))                                                  \
  X(launch_kernel, "cuLaunchKernelEx",                                                             \
    CuResult(const CuLaunchConfig*, CuFunction, void**, void**))                                   \
  X(stream_create, "cuStreamCreate", CuResult(CuStream*, unsigned))                                \
  X(stream_destroy, "cuStreamDestroy_v2", CuResult(CuStream))                                      \
  X(stream_synchronize, "cuStreamSynchronize", CuResult(CuStream))                                 \
  X(stream_wait_event, "cuStreamWaitEvent", CuResult(CuStream, CuEvent, unsigned))                 \
  X(stream_is_capturing, "cuStreamIsCapturing", CuResult(CuStream, CuCaptureStatus*))              \
  X(stream_begin_capture, "cuStreamBeginCapture_v2", CuResult(CuStream, CuCaptureMode))            \
  X(stream_end_capture, "cuStreamEndCapture", CuResult(CuStream, CuGraph*))                        \
  X(stream_get_capture_info, "cuStreamGetCaptureInfo_v2",                                          \
    CuResult(CuStream, CuCaptureStatus*, std::uint64_t*, CuGraph*, const void**, std::size_t*))    \
  X(stream_get_id, "cuStreamGetId", CuResult(CuStream, std::uint64_t*))                            \
  X(stream_get_context, "cuStreamGetCtx", CuResult(CuStream, CuContext*))                          \
  X(capture_mode_exchange, "cuThreadExchangeStreamCaptureMode", CuResult(CuCaptureMode*))          \
  X(event_create, "cuEventCreate", CuResult(CuEvent*, unsigned))                                   \
  X(event_destroy, "cuEventDestroy_v2", CuResult(CuEvent))                                         \
  X(event_record, "cuEventRecord", CuResult(CuEvent, CuStream))                                    \
  X(event_query, "cuEventQuery", CuResult(CuEvent))                                                \
  X(event_synchronize, "cuEventSynchronize", CuResult(CuEvent))                                    \
  X(event_elapsed_time, "cuEventElapsedTime", CuResult(float*, CuEvent, CuEvent))                  \
  X(graph_create, "cuGraphCreate", CuResult(CuGraph*, unsigned))                                   \
  X(graph_add_kernel_node, "cuGraphAddKernelNode_v2",                                              \
    CuResult(CuGraphNode*, CuGraph, const CuGraphNode*, std::size_t, const CuKernelNode*))         \
  X(graph_instantiate, "cuGraphInstantiateWithFlags",                                              \
    CuResult(CuGraphExec*, CuGraph, unsigned long long))                                           \
  X(graph_launch, "cuGraphLaunch", CuResult(CuGraphExec, CuStream))                                \
  X(graph_destroy, "cuGraphDestroy", CuResult(CuGraph))                                            \
  X(graph_exec_destroy, "cuGraphExecDestroy", CuResult(CuGraphExec))                               \
  X(graph_get_nodes, "cuGraphGetNodes", CuResult(CuGraph, void**, std::size_t*))                   \
  X(graph_retain_user_object, "cuGraphRetainUserObject",                                           \
    CuResult(CuGraph, CuUserObject, unsigned, unsigned))                                           \
  X(user_object_create, "cuUserObjectCreate",                                                      \
    CuResult(CuUserObject*, void*, CuHostFunction, unsigned, unsigned))                            \
  X(user_object_release, "cuUserObjectRelease", CuResult(CuUserObject, unsigned))                  \
  X(tensor_map_encode_tiled, "cuTensorMapEncodeTiled",                                             \
    CuResult(CuTensorMap*, CuTensorMapDataType, std::uint32_t, void*, const std::uint64_t*,        \
             const std::uint64_t*, const std::uint32_t*, const std::uint32_t*,                     \
             CuTensorMapInterleave, CuTensorMapSwizzle, CuTensorMapL2Promotion,                    \
             CuTensorMapOobFill))

/// The same for entries that came later, null in an older driver.
#define PLAIT_CUDA_LATER_DRIVER_FUNCTIONS(X)             \
  X(graph_add_dependencies, "cuGraphAddDependencies_v2", \
    CuResult(CuGraph, const CuGraphNode*, const CuGraphNode*, const CuGraphEdge*, std::size_t))

}  // namespace plait::cuda
