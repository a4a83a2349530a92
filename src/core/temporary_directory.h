// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace plait {

/// A new directory for this user alone that goes away with the object, whatever it holds then.
class TemporaryDirectory {
 public:
  /// Its path is `prefix` and six characters. Throws Error{kIo} if it cannot be made.
  explicit TemporaryDirectory(const std::filesystem::path& prefix);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace plait
