// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Files and directories that must not outlive the process that makes them. Destructors remove
// them; a process that a signal ends runs no destructor and calls remove_leftovers() instead.
#pragma once

#include <filesystem>

namespace plait {

/// A path that goes away with the object, a directory with all that it holds.
class Leftover {
 public:
  /// Before the file is made: an end in between must find it.
  explicit Leftover(std::filesystem::path path);
  ~Leftover();
  Leftover(const Leftover&) = delete;
  Leftover& operator=(const Leftover&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// Removes what all living Leftovers name, while other threads go on. For a process about to end:
/// from then on a thread that makes or destroys a Leftover waits for ever.
void remove_leftovers();

}  // namespace plait
