// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/loaded_kernel.h"

#include <utility>

#include "cuda/setup_scope.h"
#include "plait/error.h"

namespace plait::cuda {

namespace {
// More dynamic shared memory than this needs the function's consent.
constexpr int kSharedBytesByDefault = 48 * 1024;
}  // namespace

LoadedKernel::LoadedKernel(std::shared_ptr<DeviceContext> context,
                           std::shared_ptr<const CompiledKernel> code)
    : context_(std::move(context)), code_(std::move(code)) {
  const Driver& driver = context_->driver();
  const DeviceFacts& facts = context_->facts();
  const SetupScope scope(*context_);
  driver.check(driver.module_load_data(&module_, code_->cubin.data()), "cuModuleLoadData");
  try {
    driver.check(driver.module_get_function(&function_, module_, code_->symbol.c_str()),
                 "cuModuleGetFunction");
    int shared = 0;
    driver.check(
        driver.function_get_attribute(&shared, CuFunctionAttribute::kSharedSizeBytes, function_),
        "cuFuncGetAttribute");
    shared += code_->launch.dynamic_shared_bytes;
    if (shared > facts.shared_bytes_per_block) {
      throw Error(ErrorCode::kUnsupported, code_->symbol,
                  std::to_string(shared) + " bytes of shared memory per block",
                  "at most " + std::to_string(facts.shared_bytes_per_block) + " on " + facts.name);
    }
    if (shared > kSharedBytesByDefault) {
      driver.check(
          driver.function_set_attribute(function_, CuFunctionAttribute::kMaxDynamicSharedSizeBytes,
                                        code_->launch.dynamic_shared_bytes),
          "cuFuncSetAttribute");
      // An SM that was divided for the blocks of one kernel takes no block of another beside them
      // that would need more: kernels of one step ask for the same division, all of it.
      constexpr int kAllShared = 100;
      driver.check(driver.function_set_attribute(
                       function_, CuFunctionAttribute::kPreferredSharedMemoryCarveout, kAllShared),
                   "cuFuncSetAttribute");
    }
    if (code_->launch.cluster_size > 8) {
      driver.check(driver.function_set_attribute(
                       function_, CuFunctionAttribute::kNonPortableClusterSizeAllowed, 1),
                   "cuFuncSetAttribute");
    }
    // Asking for the occupancy also makes the driver load the code now, not at the first launch.
    driver.check(driver.occupancy_max_active_blocks(
                     &blocks_per_sm_, function_, code_->launch.threads,
                     static_cast<std::size_t>(code_->launch.dynamic_shared_bytes)),
                 "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    if (blocks_per_sm_ < 1) {
      throw Error(ErrorCode::kUnsupported, code_->symbol, "0 blocks per multiprocessor",
                  "a kernel that fits on " + facts.name);
    }
  } catch (...) {
    driver.module_unload(module_);
    throw;
  }
}

LoadedKernel::~LoadedKernel() {
  if (const TeardownScope scope(*context_); scope) context_->driver().module_unload(module_);
}

void launch(const LoadedKernel& kernel, LaunchGrid grid, void** arguments, CuStream stream,
            bool overlap_previous) {
  const KernelLaunch& info = kernel.launch_info();
  CuLaunchAttribute attributes[2] = {};
  CuLaunchConfig config{};
  config.grid_x = grid.x;
  config.grid_y = grid.y;
  config.grid_z = grid.z;
  config.block_x = static_cast<unsigned>(info.threads);
  config.block_y = 1;
  config.block_z = 1;
  config.shared_bytes = static_cast<unsigned>(info.dynamic_shared_bytes);
  config.stream = stream;
  config.attributes = attributes;
  if (info.cluster_size > 1) {
    CuLaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = CuLaunchAttributeId::kClusterDimension;
    attribute.value.cluster.x = static_cast<unsigned>(info.cluster_size);
    attribute.value.cluster.y = 1;
    attribute.value.cluster.z = 1;
  }
  if (overlap_previous) {
    CuLaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = CuLaunchAttributeId::kProgrammaticStreamSerialization;
    attribute.value.programmatic_stream_serialization = 1;
  }
  const Driver& driver = kernel.context().driver();
  driver.check(driver.launch_kernel(&config, kernel.function(), arguments, nullptr),
               "cuLaunchKernelEx");
}

}  // namespace plait::cuda
