// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/cache_directory.h"
#include "core/environment.h"
#include "core/key_lock.h"
#include "core/leftover.h"

namespace plait::cuda {
namespace {

std::string error_text(const std::string& what, int error) {
  return what + ": " + std::strerror(error);
}

/// The largest kernels have some 200 KiB; what has more than this was not written here.
constexpr std::int64_t kLargestEntry = std::int64_t{64} << 20;

/// The file's bytes if it is a regular file of this user; nothing otherwise.
std::optional<std::vector<char>> read_file(const std::string& path) {
  // A pipe would wait for somebody to write.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return std::nullopt;
  struct stat info {};
  std::vector<char> bytes;
  bool complete = ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) &&
                  info.st_uid == ::geteuid() && info.st_size <= kLargestEntry;
  if (complete) bytes.resize(static_cast<std::size_t>(info.st_size));
  for (std::size_t done = 0; complete && done < bytes.size();) {
    const ssize_t count = ::read(descriptor, bytes.data() + done, bytes.size() - done);
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      complete = false;
    }
  }
  ::close(descriptor);
  if (!complete) return std::nullopt;
  return bytes;
}

/// 0, or errno of what failed.
int write_file(const std::string& path, const std::vector<char>& bytes) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (descriptor < 0) return errno;
  int error = 0;
  for (std::size_t done = 0; error == 0 && done < bytes.size();) {
    const ssize_t count = ::write(descriptor, bytes.data() + done, bytes.size() - done);
    if (count >= 0) {
      done += static_cast<std::size_t>(count);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  // Without it, a crash of the machine may leave a name with empty contents.
  if (error == 0 && ::fsync(descriptor) != 0) error = errno;
  if (::close(descriptor) != 0 && error == 0) error = errno;
  return error;
}

void sync_directory(const std::string& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

std::string DiskCache::default_directory() { return default_cache_directory(); }

DiskCache::DiskCache(std::string directory) : directory_(std::move(directory)) {
  if (directory_.empty()) {
    const std::string chosen = environment("PLAIT_CACHE_DIR");
    reason_ = chosen.empty()
                  ? "no directory: none of PLAIT_CACHE_DIR, XDG_CACHE_HOME and HOME names one"
                  : "no directory: PLAIT_CACHE_DIR is " + chosen +
                        ", which is relative, and the directory that it is below is gone";
    return;
  }
  std::error_code error;
  const std::string given = std::exchange(directory_, std::string());
  const std::filesystem::path absolute = std::filesystem::absolute(given, error);
  if (!error) directory_ = absolute.string();
  reason_ = error ? "no directory for " + given + ": " + error.message()
                  : inspect_cache_directory(directory_);
  readable_ = reason_.empty();
  if (!readable_) return;
  writable_ = ::access(directory_.c_str(), W_OK) == 0;
  if (writable_) {
    remove_stale_temporaries(directory_);
  } else {
    reason_ = error_text("cannot write " + directory_, errno);
  }
}

bool DiskCache::writable() const {
  const std::lock_guard lock(mutex_);
  return writable_;
}

std::string DiskCache::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

DiskCache::Counters DiskCache::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void DiskCache::count(std::int64_t Counters::*which) {
  const std::lock_guard lock(mutex_);
  ++(counters_.*which);
}

void DiskCache::give_up_writing(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  writable_ = false;
  reason_ = reason;
}

std::optional<CompiledKernel> DiskCache::load(const DiskKey& key) {
  if (!readable_) return std::nullopt;
  const std::string path = directory_ + "/" + entry_name(key);
  const std::optional<std::vector<char>> bytes = read_file(path);
  if (!bytes) {
    count(&Counters::misses);
    return std::nullopt;
  }
  std::optional<CompiledKernel> kernel = decode_entry(key, *bytes);
  count(kernel ? &Counters::hits : &Counters::damaged);
  return kernel;
}

std::vector<CompilerBuild> DiskCache::compilers_of(const DiskKey& key) const {
  std::vector<CompilerBuild> compilers;
  DIR* listing = readable_ ? ::opendir(directory_.c_str()) : nullptr;
  if (listing == nullptr) return compilers;
  while (const dirent* entry = ::readdir(listing)) {
    if (const auto compiler = compiler_of(entry->d_name, key)) compilers.push_back(*compiler);
  }
  ::closedir(listing);
  std::sort(compilers.rbegin(), compilers.rend());
  return compilers;
}

bool DiskCache::store(const DiskKey& key, const CompiledKernel& kernel) {
  static std::atomic<unsigned> serial{0};
  const std::string final_path = directory_ + "/" + entry_name(key);
  // In containers, a process often has the id of a killed one, or of one that still writes: the
  // name holds the time too.
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const Leftover temporary(final_path + ".tmp." + std::to_string(::getpid()) + "." +
                           std::to_string(serial.fetch_add(1)) + "." + std::to_string(now));
  int error = write_file(temporary.path(), encode_entry(key, kernel));
  if (error == 0 && ::rename(temporary.path().c_str(), final_path.c_str()) != 0) error = errno;
  if (error == 0) {
    sync_directory(directory_);
    return true;
  }
  give_up_writing(error_text("cannot write to " + directory_, error));
  return false;
}

CompiledKernel DiskCache::get_or_build(const DiskKey& key,
                                       const std::function<CompiledKernel()>& build) {
  if (std::optional<CompiledKernel> kernel = load(key)) return *std::move(kernel);
  if (!readable_ || !writable()) {
    CompiledKernel kernel = build();
    count(&Counters::built);
    count(&Counters::unstored);
    return kernel;
  }
  const KeyLock lock(directory_ + "/" + hash_text(key) + ".lock", kPatience);
  if (lock.outcome() == KeyLock::Outcome::kUnavailable) {
    give_up_writing(error_text("cannot lock in " + directory_, lock.error()));
  }
  // Whoever held the lock before may have built it.
  if (std::optional<CompiledKernel> kernel = load(key)) return *std::move(kernel);
  CompiledKernel kernel = build();
  count(&Counters::built);
  if (!writable() || !store(key, kernel)) count(&Counters::unstored);
  return kernel;
}

}  // namespace plait::cuda
