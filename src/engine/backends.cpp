// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "engine/backends.h"

#include <algorithm>
#include <string>

#include "cpu/cpu_backend.h"
#include "engine/tensor_checks.h"
#if PLAIT_WITH_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace plait::detail {
namespace {

std::vector<std::unique_ptr<Backend>> all_of_device(const EngineOptions& options) {
  std::vector<std::unique_ptr<Backend>> backends;
  if (options.device.kind == DeviceKind::kCpu) {
    if (options.device.index != 0) {
      throw Error(ErrorCode::kInvalidArgument, "device", device_text(options.device),
                  "cpu, which is one device");
    }
    backends.push_back(make_cpu_backend());
    return backends;
  }
#if PLAIT_WITH_CUDA
  if (options.device.kind == DeviceKind::kCuda) return make_cuda_backends(options);
#endif
  throw Error(ErrorCode::kBackend, "device", device_text(options.device),
              "a device that this build serves: cpu"
#if PLAIT_WITH_CUDA
              ", cuda"
#endif
  );
}

}  // namespace

std::vector<std::unique_ptr<Backend>> make_backends(const EngineOptions& options) {
  static constexpr const char* kFamilies[] = {"auto", "cpu", "mma", "hopper"};
  if (std::find(std::begin(kFamilies), std::end(kFamilies), options.family) ==
      std::end(kFamilies)) {
    throw Error(ErrorCode::kInvalidArgument, "family", options.family, "auto, cpu, mma or hopper");
  }
  if (options.device.kind != DeviceKind::kCpu && options.num_threads != 0) {
    throw Error(ErrorCode::kInvalidArgument, "num_threads", std::to_string(options.num_threads),
                "0 on a device other than the CPU");
  }
  if (options.run_graphs && options.device.kind == DeviceKind::kCpu) {
    throw Error(ErrorCode::kInvalidArgument, "run_graphs", std::to_string(*options.run_graphs),
                "nothing on the CPU, which launches no kernels");
  }
  if (options.run_graphs && (*options.run_graphs < 0 || *options.run_graphs > kMaxRunGraphs)) {
    throw Error(ErrorCode::kInvalidArgument, "run_graphs", std::to_string(*options.run_graphs),
                "0 to " + std::to_string(kMaxRunGraphs));
  }
  if (static_cast<bool>(options.allocator.allocate) !=
      static_cast<bool>(options.allocator.deallocate)) {
    throw Error(ErrorCode::kInvalidArgument, "allocator",
                options.allocator.allocate ? "allocate alone" : "deallocate alone",
                "both functions or neither");
  }
  std::vector<std::unique_ptr<Backend>> backends = all_of_device(options);
  if (options.family != "auto") {
    std::erase_if(backends, [&](const auto& b) { return b->family() != options.family; });
    if (backends.empty()) {
      throw Error(ErrorCode::kUnsupported, "family", options.family,
                  options.device.kind == DeviceKind::kCpu ? "auto or cpu on the CPU"
                                                          : "auto, mma or hopper on a CUDA device");
    }
  }
  return backends;
}

std::unique_ptr<Operations> make_operations(const EngineOptions& options) {
#if PLAIT_WITH_CUDA
  if (options.device.kind == DeviceKind::kCuda) return make_cuda_operations(options);
#endif
  return make_cpu_operations(options);
}

}  // namespace plait::detail
