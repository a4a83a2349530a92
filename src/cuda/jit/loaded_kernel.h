// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "cuda/device.h"
#include "cuda/jit/compiled_kernel.h"

namespace plait::cuda {

/// Machine code in the memory of one device, ready to be launched. Loading happens when an
/// `Attention` is made: it may allocate and synchronise, which a capture forbids.
class LoadedKernel {
 public:
  /// Throws Error{kUnsupported} if the kernel needs more shared memory than the device has,
  /// Error{kBackend} if the driver refuses the code.
  LoadedKernel(std::shared_ptr<DeviceContext> context, std::shared_ptr<const CompiledKernel> code);
  ~LoadedKernel();
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;

  CuFunction function() const noexcept { return function_; }
  const CompiledKernel& code() const noexcept { return *code_; }
  const KernelLaunch& launch_info() const noexcept { return code_->launch; }
  const DeviceContext& context() const noexcept { return *context_; }
  /// Blocks that fit on one SM, by the driver's own arithmetic; at least 1.
  int blocks_per_sm() const noexcept { return blocks_per_sm_; }

 private:
  std::shared_ptr<DeviceContext> context_;
  std::shared_ptr<const CompiledKernel> code_;
  CuModule module_ = nullptr;
  CuFunction function_ = nullptr;
  int blocks_per_sm_ = 0;
};

struct LaunchGrid {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

/// Enqueues one grid on `stream`. `arguments` points to one pointer per kernel parameter. Block
/// size, dynamic shared memory and cluster size are the kernel's own. With `overlap_previous` the
/// grid may start while the previous grid of the stream still runs (programmatic dependent launch;
/// the kernel must execute griddepcontrol.wait before it reads that grid's results). The kernel's
/// context must be current. Costs a few microseconds, never blocks, may be captured.
void launch(const LoadedKernel& kernel, LaunchGrid grid, void** arguments, CuStream stream,
            bool overlap_previous = false);

}  // namespace plait::cuda
