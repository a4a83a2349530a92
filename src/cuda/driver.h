// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver, opened at run time. Search order of libcuda:
//   1. PLAIT_LIBCUDA, a file: nothing else is tried when it is set;
//   2. the loader's own search for libcuda.so.1;
//   3. /usr/lib/<machine>-linux-gnu, /usr/local/nvidia/lib64, /usr/lib64, /usr/lib/wsl/lib.
// A toolkit's stub directory is never searched.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/driver_types.h"
#include "cuda/shared_library.h"

namespace plait::cuda {

/// A CUDA release, for example 13.0.
struct CudaVersion {
  int major = 0;
  int minor = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 finds a 0 in what is defaulted
  friend constexpr auto operator<=>(const CudaVersion&, const CudaVersion&) = default;
};
std::string to_string(CudaVersion version);

/// Typed entry points of libcuda, and the identity of the library they came from. Immutable once
/// opened; every member may be called from any thread.
class Driver {
 public:
  /// The process-wide driver, opened and initialised on first use; the outcome of the first use
  /// stays. Throws Error{kBackend} naming every place that was searched.
  static const Driver& get();

  /// As `get`, null instead of a throw; `reason`, when given, receives the message.
  static const Driver* find(std::string* reason = nullptr);

  /// Opens a driver by the search order above, or from `path` alone when it is not empty. Tests use
  /// it with a bad path; everything else uses `get`.
  static std::unique_ptr<Driver> open(const std::string& path);

#define PLAIT_DECLARE(name, symbol, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  PLAIT_CUDA_DRIVER_FUNCTIONS(PLAIT_DECLARE)
  PLAIT_CUDA_LATER_DRIVER_FUNCTIONS(PLAIT_DECLARE)
#undef PLAIT_DECLARE

  /// Throws on any result but success: Error{kOutOfMemory} for out of memory, else Error{kBackend}
  /// with the driver's name for the error. `call` names the operation as a caller knows it.
  void check(CuResult result, const char* call) const {
    if (result != kCuSuccess) fail(result, call);
  }
  [[noreturn]] void fail(CuResult result, const char* call) const;
  /// For example "CUDA_ERROR_INVALID_VALUE (1): invalid argument".
  std::string describe(CuResult result) const;

  /// The newest CUDA release the driver supports.
  CudaVersion version() const noexcept { return version_; }
  const std::string& path() const noexcept { return path_; }
  /// Visible devices; at least one.
  int device_count() const noexcept { return device_count_; }

 private:
  SharedLibrary library_;
  std::string path_;
  CudaVersion version_;
  int device_count_ = 0;
};

}  // namespace plait::cuda
