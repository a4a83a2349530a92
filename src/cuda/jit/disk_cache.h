// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Compiled kernels on disk, shared by the processes of one user. See docs/jit.md for the rules; in
// short: the directory must be the user's own, entries appear by atomic rename, one process
// compiles a key while the others wait, and whatever goes wrong costs time, never correctness.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cuda/jit/cache_entry.h"

namespace plait::cuda {

class DiskCache {
 public:
  struct Counters {
    std::int64_t hits = 0;
    std::int64_t misses = 0;   // no file
    std::int64_t damaged = 0;  // a file that failed verification, and was built again
    std::int64_t built = 0;
    std::int64_t unstored = 0;  // built but not written, see `reason`
  };

  /// default_cache_directory().
  static std::string default_directory();

  /// Creates the directory (0700) if needed; a relative one stays the same wherever the process
  /// goes. Never throws: a directory that cannot be used turns
  /// the cache off with a reason. An empty name turns it off too.
  explicit DiskCache(std::string directory);

  const std::string& directory() const noexcept { return directory_; }
  /// Whether entries are read, and whether new ones can be written as far as is known.
  bool readable() const noexcept { return readable_; }
  bool writable() const;
  /// Why the cache is off or no longer written; empty while all is well.
  std::string reason() const;
  Counters counters() const;

  /// The kernel of `key` from disk, or from `build`, which one process at a time calls per key; its
  /// exceptions pass through, and the next in line tries again. Thread safe.
  CompiledKernel get_or_build(const DiskKey& key, const std::function<CompiledKernel()>& build);

  /// Only what is there already.
  std::optional<CompiledKernel> load(const DiskKey& key);

  /// Compilers that made an entry with this hash, the newest version first: how a machine without
  /// NVRTC finds what another one made.
  std::vector<CompilerBuild> compilers_of(const DiskKey& key) const;

  /// How long to wait for another process that holds a key before building it here regardless:
  /// a builder that is killed frees the key at once, one that is stopped must not block others.
  static constexpr std::chrono::seconds kPatience{60};

 private:
  bool store(const DiskKey& key, const CompiledKernel& kernel);
  void give_up_writing(const std::string& reason);
  void count(std::int64_t Counters::*which);

  std::string directory_;
  bool readable_ = false;
  mutable std::mutex mutex_;
  bool writable_ = false;
  std::string reason_;
  Counters counters_;
};

}  // namespace plait::cuda
