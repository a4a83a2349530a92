// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace plait::cuda {

/// One candidate that was tried and did not open, and what the loader said about it.
struct LibraryAttempt {
  std::string path;
  std::string reason;
};

/// Lines "path: reason", for messages.
std::string to_string(const std::vector<LibraryAttempt>& attempts);

/// A dlopen handle. CUDA libraries are never closed again: they start threads and register exit
/// handlers, and unloading them while either is alive crashes the process at exit.
class SharedLibrary {
 public:
  SharedLibrary() = default;

  /// Opens `path` (a file or a soname). Returns an empty object and appends to `attempts` on
  /// failure.
  static SharedLibrary open(const std::string& path, std::vector<LibraryAttempt>* attempts);

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  /// The address of `symbol`, or null.
  void* find(const char* symbol) const noexcept;
  /// The file that the loader mapped, which a soname alone does not tell.
  std::string resolved_path(const char* symbol) const;
  /// A hash of the build id that the linker gave to the file of `symbol`, which any two builds
  /// differ in; 0 if there is none.
  std::uint64_t build_of(const char* symbol) const;

 private:
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace plait::cuda
