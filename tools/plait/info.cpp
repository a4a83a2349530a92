// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// plait info: what this machine offers, and why anything is off.
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "core/environment.h"
#include "cpu/kernel_table.h"
#include "plait/error.h"
#include "plait/options.h"
#include "plait/verb.h"
#if PLAIT_WITH_CUDA
#include "cuda/device.h"
#include "cuda/family.h"
#include "cuda/jit/disk_cache.h"
#include "cuda/jit/kernel_cache.h"
#include "cuda/nvrtc.h"
#endif

namespace plait::tool {
namespace {

/// One line of the report; names are padded to one column.
void print_line(const std::string& name, const std::string& value) {
  std::printf("%-14s %s\n", name.c_str(), value.c_str());
}

#if PLAIT_WITH_CUDA

std::string mebibytes(std::int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

/// A line for each family; `decline` says why one is off.
template <typename Decline>
void print_families(const Decline& decline) {
  for (const cuda::FamilyHooks* family : cuda::kernel_families()) {
    const std::string reason = decline(*family);
    print_line("  " + std::string(family->name()), reason.empty() ? "on" : "off: " + reason);
  }
}

void print_device(const cuda::Driver& driver, int ordinal, const cuda::Nvrtc* nvrtc) {
  const cuda::DeviceFacts facts = cuda::query_device(driver, ordinal);
  print_line("cuda:" + std::to_string(ordinal),
             facts.name + ", compute capability " + std::to_string(facts.compute_capability / 10) +
                 "." + std::to_string(facts.compute_capability % 10) + ", " +
                 std::to_string(facts.sm_count) + " SMs, " + mebibytes(facts.memory_bytes) +
                 ", L2 " + mebibytes(facts.l2_bytes));
  print_line("", std::to_string(facts.shared_bytes_per_sm) + " bytes of shared memory per SM, " +
                     std::to_string(facts.shared_bytes_per_block) + " per block, " +
                     std::to_string(facts.registers_per_sm) + " registers per SM");
  std::string no_kernels;
  if (nvrtc != nullptr) {
    try {
      print_line("  kernels", to_string(cuda::arch_for_device(facts.compute_capability,
                                                              nvrtc->architectures())));
    } catch (const Error& error) {
      no_kernels = error.what();
      print_line("  kernels", "none: " + no_kernels);
    }
  } else {
    print_line("  kernels", "those of the kernel cache alone: no libnvrtc");
  }
  print_families([&](const cuda::FamilyHooks& family) {
    const std::string reason = family.decline_device(facts);
    return reason.empty() && !no_kernels.empty() ? "no kernels" : reason;
  });
}

void print_cuda() {
  std::string reason;
  const cuda::Driver* driver = cuda::Driver::find(&reason);
  if (driver != nullptr) {
    print_line("libcuda", driver->path() + ", CUDA " + to_string(driver->version()));
  } else {
    print_line("libcuda", "off: " + reason);
  }
  reason.clear();
  const cuda::Nvrtc* nvrtc = cuda::Nvrtc::find(&reason);
  if (nvrtc != nullptr) {
    std::string archs;
    for (int sm : nvrtc->architectures()) {
      if (sm >= 80) archs += (archs.empty() ? "sm_" : ", sm_") + std::to_string(sm);
    }
    print_line("libnvrtc", nvrtc->path() + ", version " + to_string(nvrtc->version()));
    print_line("", "compiles for " + archs);
  } else {
    print_line("libnvrtc", "off: " + reason);
  }
  const cuda::DiskCache cache(cuda::DiskCache::default_directory());
  std::string state = cache.writable() ? "" : cache.readable() ? " (read only)" : " (off)";
  if (!cache.reason().empty()) state += ": " + cache.reason();
  print_line("kernel cache", cache.directory() + state);
  const std::string sources = environment("PLAIT_KERNEL_DIR");
  print_line("kernel source", sources.empty() ? "embedded" : sources + " (PLAIT_KERNEL_DIR)");
  if (driver == nullptr) {
    print_line("cuda", "off: no libcuda");
    print_families([](const cuda::FamilyHooks&) { return std::string("no libcuda"); });
    return;
  }
  for (int device = 0; device < driver->device_count(); ++device) {
    print_device(*driver, device, nvrtc);
  }
}

#endif  // PLAIT_WITH_CUDA

int run(const std::vector<std::string>& args) {
  CLI::App app("Shows devices, libraries and kernel families, and why any of them is off.",
               "plait info");
  if (const auto code = parse_options(app, args)) return *code;
  print_line("plait", PLAIT_VERSION);
  const cpu::KernelTable& simd = cpu::kernels();
  print_line("cpu", std::to_string(std::thread::hardware_concurrency()) + " threads, " + simd.name +
                        ", " + std::to_string(simd.lanes) + " floats per vector");
#if PLAIT_WITH_CUDA
  print_cuda();
#else
  print_line("cuda", "off: this build has no CUDA backend (PLAIT_CUDA=OFF)");
#endif
  return 0;
}

const VerbRegistration kRegistration{"info", "what this machine offers", run};

}  // namespace
}  // namespace plait::tool
