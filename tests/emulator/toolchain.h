// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The system's compiler and linker as the emulator uses them.
#pragma once

#include <filesystem>
#include <string>

namespace plait::emulator {

/// A private directory, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// Makes parent folders too. Throws std::runtime_error.
void write_file(const std::filesystem::path& path, const std::string& bytes);

/// The object file of kernel.cpp in `folder`, which is preprocessed and translated first. Throws
/// std::runtime_error with the compiler's words.
std::string compile_kernel(const std::filesystem::path& folder);

/// Links an object file and opens the result; null with `*error` if that fails.
void* open_object(const std::string& object, std::string* error);

}  // namespace plait::emulator
