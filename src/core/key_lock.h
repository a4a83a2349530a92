// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace plait {

/// An exclusive lock between threads and processes, by flock on a file of its own. The kernel drops
/// it when its holder dies, however it dies.
class KeyLock {
 public:
  enum class Outcome {
    kHeld,
    kTimedOut,     // another holder kept it for the whole time
    kUnavailable,  // the file cannot be made, or the file system knows no locks
  };

  /// Waits at most `patience`.
  KeyLock(std::string path, std::chrono::milliseconds patience);
  ~KeyLock();
  KeyLock(const KeyLock&) = delete;
  KeyLock& operator=(const KeyLock&) = delete;

  Outcome outcome() const noexcept { return outcome_; }
  /// errno of an unavailable lock.
  int error() const noexcept { return error_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  int error_ = 0;
  Outcome outcome_ = Outcome::kUnavailable;
};

}  // namespace plait
