// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/key_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

namespace plait {

KeyLock::KeyLock(std::string path, std::chrono::milliseconds patience) : path_(std::move(path)) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + patience;
  std::chrono::milliseconds pause{1};
  for (;;) {
    if (descriptor_ < 0) {
      descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
      if (descriptor_ < 0) {
        error_ = errno;
        return;
      }
    }
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
      // The previous holder removes the file before it lets go, so a lock on a file that is no
      // longer the one at `path_` guards nothing: start over with the new file.
      struct stat held {};
      struct stat named {};
      if (::fstat(descriptor_, &held) == 0 && ::stat(path_.c_str(), &named) == 0 &&
          held.st_ino == named.st_ino && held.st_dev == named.st_dev) {
        outcome_ = Outcome::kHeld;
        return;
      }
      ::close(descriptor_);
      descriptor_ = -1;
      continue;
    }
    if (errno != EWOULDBLOCK && errno != EINTR) {
      error_ = errno;
      ::close(std::exchange(descriptor_, -1));
      return;
    }
    if (Clock::now() >= deadline) {
      outcome_ = Outcome::kTimedOut;
      ::close(std::exchange(descriptor_, -1));
      return;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(20));
  }
}

KeyLock::~KeyLock() {
  if (descriptor_ < 0) return;
  ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace plait
