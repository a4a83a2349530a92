// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "cuda/jit/key_lock.h"
#include "cuda/shared_library.h"

namespace plait::cuda {
namespace {

constexpr std::time_t kStaleTemporarySeconds = 3600;

std::string error_text(const std::string& what, int error) {
  return what + ": " + std::strerror(error);
}

/// Empty if the directory may be used, else why not.
std::string inspect_directory(const std::string& directory) {
  std::error_code error;
  const std::filesystem::path path(directory);
  if (!std::filesystem::exists(path, error)) {
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
    // EEXIST: another process was faster.
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
      return error_text("cannot create " + directory, errno);
    }
  }
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0) return error_text("cannot read " + directory, errno);
  if (!S_ISDIR(info.st_mode)) return directory + " is not a directory";
  if (info.st_uid != ::geteuid()) {
    return directory + " belongs to user " + std::to_string(info.st_uid) + ", not to " +
           std::to_string(::geteuid());
  }
  // Machine code is executed: nobody else may be able to put some here.
  if ((info.st_mode & 022) != 0) return directory + " can be written by others";
  if (::access(directory.c_str(), R_OK | X_OK) != 0) {
    return error_text("cannot read " + directory, errno);
  }
  return {};
}

/// The file's bytes if it is a regular file of this user; nothing otherwise.
std::optional<std::vector<char>> read_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0) return std::nullopt;
  struct stat info {};
  std::vector<char> bytes;
  bool complete =
      ::fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == ::geteuid();
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

/// Removes what killed writers left behind long ago.
void remove_stale_temporaries(const std::string& directory) {
  DIR* listing = ::opendir(directory.c_str());
  if (listing == nullptr) return;
  const std::time_t now = std::time(nullptr);
  while (const dirent* entry = ::readdir(listing)) {
    if (std::strstr(entry->d_name, ".tmp.") == nullptr) continue;
    const std::string path = directory + "/" + entry->d_name;
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0 && now - info.st_mtime > kStaleTemporarySeconds) {
      ::unlink(path.c_str());
    }
  }
  ::closedir(listing);
}

}  // namespace

std::string DiskCache::default_directory() {
  const std::string chosen = environment("PLAIT_CACHE_DIR");
  if (!chosen.empty()) return chosen;
  const std::string cache = environment("XDG_CACHE_HOME");
  if (!cache.empty()) return cache + "/plait";
  const std::string home = environment("HOME");
  return home.empty() ? std::string() : home + "/.cache/plait";
}

DiskCache::DiskCache(std::string directory) : directory_(std::move(directory)) {
  if (directory_.empty()) {
    reason_ = "no directory: none of PLAIT_CACHE_DIR, XDG_CACHE_HOME and HOME is set";
    return;
  }
  reason_ = inspect_directory(directory_);
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

std::vector<CudaVersion> DiskCache::versions_of(const DiskKey& key) const {
  std::vector<CudaVersion> versions;
  DIR* listing = readable_ ? ::opendir(directory_.c_str()) : nullptr;
  if (listing == nullptr) return versions;
  const std::string prefix = hash_text(key) + "-";
  while (const dirent* entry = ::readdir(listing)) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(prefix) || !name.ends_with(".plk")) continue;
    const char* end = name.data() + name.size();
    CudaVersion version;
    const auto major = std::from_chars(name.data() + prefix.size(), end, version.major);
    if (major.ec != std::errc() || *major.ptr != '.') continue;
    const auto minor = std::from_chars(major.ptr + 1, end, version.minor);
    if (minor.ec == std::errc()) versions.push_back(version);
  }
  ::closedir(listing);
  std::sort(versions.rbegin(), versions.rend());
  return versions;
}

bool DiskCache::store(const DiskKey& key, const CompiledKernel& kernel) {
  static std::atomic<unsigned> serial{0};
  const std::string final_path = directory_ + "/" + entry_name(key);
  const std::string temporary =
      final_path + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(serial.fetch_add(1));
  int error = write_file(temporary, encode_entry(key, kernel));
  if (error == 0 && ::rename(temporary.c_str(), final_path.c_str()) != 0) error = errno;
  if (error == 0) {
    sync_directory(directory_);
    return true;
  }
  ::unlink(temporary.c_str());
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
