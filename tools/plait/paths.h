// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unordered_map>

namespace plait::tool {

/// The files that a command line or a batch file names, so that none is written over another.
/// Options that were left out have empty paths and do not count.
class Paths {
 public:
  void input(const std::string& option, const std::string& path);
  /// Throws Error{kInvalidArgument} if an earlier option names the same file, Error{kIo} if it
  /// cannot be written: before any work is done.
  void output(const std::string& option, const std::string& path);

 private:
  std::unordered_map<std::string, std::string> named_;  // option by what identifies its file
};

}  // namespace plait::tool
