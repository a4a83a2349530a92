// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// NVIDIA's run-time compiler, opened at run time. Search order of libnvrtc:
//   1. PLAIT_NVRTC, a file or a directory that holds one: nothing else is tried when it is set;
//   2. the loader's own search for libnvrtc.so.13, libnvrtc.so.12, libnvrtc.so (a library that the
//      process has loaded already, as PyTorch does, is found here);
//   3. lib64 of CUDA_HOME, of CUDA_PATH, of /usr/local/cuda, of every /usr/local/cuda-*, newest
//   first;
//   4. the pip wheels nvidia-cuda-nvrtc: nvidia/cu13/lib and nvidia/cuda_nvrtc/lib below the
//      site-packages of VIRTUAL_ENV, of CONDA_PREFIX, of the first python3 on PATH, of ~/.local and
//      of /usr/local.
// A candidate newer than the driver is passed over: the driver may not be able to load what it
// makes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "cuda/shared_library.h"

namespace plait::cuda {

using NvrtcResult = int;
using NvrtcProgram = struct NvrtcProgramOpaque*;

/// X(name, symbol in libnvrtc, type). Every entry exists since NVRTC 12.0.
#define PLAIT_NVRTC_FUNCTIONS(X)                                                                \
  X(get_version, "nvrtcVersion", NvrtcResult(int*, int*))                                       \
  X(get_error_string, "nvrtcGetErrorString", const char*(NvrtcResult))                          \
  X(get_arch_count, "nvrtcGetNumSupportedArchs", NvrtcResult(int*))                             \
  X(get_archs, "nvrtcGetSupportedArchs", NvrtcResult(int*))                                     \
  X(create_program, "nvrtcCreateProgram",                                                       \
    NvrtcResult(NvrtcProgram*, const char*, const char*, int, const char* const*,               \
                const char* const*))                                                            \
  X(destroy_program, "nvrtcDestroyProgram", NvrtcResult(NvrtcProgram*))                         \
  X(compile_program, "nvrtcCompileProgram", NvrtcResult(NvrtcProgram, int, const char* const*)) \
  X(get_cubin_size, "nvrtcGetCUBINSize", NvrtcResult(NvrtcProgram, std::size_t*))               \
  X(get_cubin, "nvrtcGetCUBIN", NvrtcResult(NvrtcProgram, char*))                               \
  X(get_log_size, "nvrtcGetProgramLogSize", NvrtcResult(NvrtcProgram, std::size_t*))            \
  X(get_log, "nvrtcGetProgramLog", NvrtcResult(NvrtcProgram, char*))

/// A compiler as far as machine code depends on it. nvrtcVersion tells no patch release, which is
/// there to change what is compiled.
struct CompilerBuild {
  CudaVersion version;
  std::uint64_t build = 0;  // SharedLibrary::build_of
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 finds a 0 in what is defaulted
  friend constexpr auto operator<=>(const CompilerBuild&, const CompilerBuild&) = default;
};

/// Typed entry points of one libnvrtc. Immutable once opened; may be used from any thread.
class Nvrtc {
 public:
  /// Opens the compiler by the search order above; `location` stands in for PLAIT_NVRTC when it is
  /// not empty. With `newest`, a version beyond it is refused. Throws Error{kBackend} naming every
  /// place that was searched, or both versions.
  static std::unique_ptr<Nvrtc> open(const std::string& location,
                                     std::optional<CudaVersion> newest);

  /// The process-wide compiler: PLAIT_NVRTC, limited to the driver's version where a driver is
  /// present. The outcome of the first use stays.
  static const Nvrtc& get();
  static const Nvrtc* find(std::string* reason = nullptr);

#define PLAIT_DECLARE(name, symbol, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  PLAIT_NVRTC_FUNCTIONS(PLAIT_DECLARE)
#undef PLAIT_DECLARE

  /// Throws Error{kBackend} on any result but success.
  void check(NvrtcResult result, const char* call) const;

  CudaVersion version() const noexcept { return build_.version; }
  CompilerBuild build() const noexcept { return build_; }
  const std::string& path() const noexcept { return path_; }
  /// Compute capabilities it compiles for, 10 * major + minor, ascending.
  const std::vector<int>& architectures() const noexcept { return architectures_; }

 private:
  SharedLibrary library_;
  std::string path_;
  CompilerBuild build_;
  std::vector<int> architectures_;
};

}  // namespace plait::cuda
