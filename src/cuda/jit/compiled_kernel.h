// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace plait::cuda {

/// What ptxas says a kernel uses. Bytes, per thread or per block. All zero if it said nothing.
struct KernelResources {
  std::int32_t registers = 0;
  std::int32_t stack_bytes = 0;          // per thread
  std::int32_t spill_store_bytes = 0;    // per thread
  std::int32_t spill_load_bytes = 0;     // per thread
  std::int32_t static_shared_bytes = 0;  // per block
  std::int32_t barriers = 0;
  bool known() const noexcept { return registers > 0; }
  friend bool operator==(const KernelResources&, const KernelResources&) = default;
};

/// What the entry source stated with PLAIT_LAUNCH_INFO.
struct KernelLaunch {
  std::int32_t threads = 0;
  std::int32_t dynamic_shared_bytes = 0;
  std::int32_t min_blocks_per_sm = 0;
  std::int32_t cluster_size = 1;
  friend bool operator==(const KernelLaunch&, const KernelLaunch&) = default;
};

/// Machine code of one kernel for one architecture.
struct CompiledKernel {
  std::string symbol;
  std::vector<char> cubin;
  KernelResources resources;
  KernelLaunch launch;
  std::vector<std::string> warnings;  // of the front end and of ptxas, one line each
};

}  // namespace plait::cuda
