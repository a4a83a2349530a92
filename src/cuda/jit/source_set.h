// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace plait::cuda {

/// The device sources by name relative to src/, such as "core/device/state.h": what an #include
/// line in device code must say. Nothing outside the set can be included: the compiler gets no
/// include path.
class SourceSet {
 public:
  /// The sources compiled into the library.
  static SourceSet embedded();
  /// The same folders read from a source tree (`directory` is its src/). Throws Error{kIo}.
  static SourceSet from_directory(const std::string& directory);
  /// PLAIT_KERNEL_DIR when it is set, else the embedded sources.
  static SourceSet from_environment();

  /// A set made of `files`; tests use it.
  explicit SourceSet(std::map<std::string, std::string, std::less<>> files)
      : files_(std::move(files)) {}

  /// Null if there is none.
  const std::string* find(std::string_view name) const;
  const std::map<std::string, std::string, std::less<>>& files() const noexcept { return files_; }

  /// Names of all files that `text` includes, directly or not, sorted. Conditional includes count,
  /// so the list may be longer than what one compilation reads, never shorter. Names that are not
  /// in the set are left out: the compiler will name them.
  std::vector<std::string> closure(std::string_view text) const;

  /// The operand of the first include in `text` that names nothing of the set, or nothing. NVRTC
  /// opens absolute names without any include path, and what it reads that way is in no disk key.
  std::string foreign_include(std::string_view text) const;

 private:
  std::map<std::string, std::string, std::less<>> files_;
};

}  // namespace plait::cuda
