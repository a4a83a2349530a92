// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace plait::serve {

/// A file that appears complete or not at all. Construction proves that the folder takes new
/// files (nothing is left behind), so that a long run does not end with an unwritable result;
/// `write` fills a temporary file beside the target and renames it.
class AtomicFile {
 public:
  /// Throws Error{kIo} naming `option`.
  AtomicFile(std::string path, std::string option);

  void write(std::string_view content) const;
  const std::string& path() const noexcept { return path_; }

 private:
  [[noreturn]] void refuse(int error) const;
  std::string path_;
  std::string option_;
};

}  // namespace plait::serve
