// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/cache_directory.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "core/environment.h"

namespace plait {
namespace {

constexpr std::time_t kStaleSeconds = 3600;

std::string error_text(const std::string& what, int error) {
  return what + ": " + std::strerror(error);
}

}  // namespace

std::string default_cache_directory() {
  // A relative name means one directory, wherever the process goes later.
  static const std::filesystem::path start = [] {
    std::error_code ignored;
    return std::filesystem::current_path(ignored);
  }();
  const std::string chosen = environment("PLAIT_CACHE_DIR");
  if (!chosen.empty()) {
    const std::filesystem::path path = start / chosen;
    // Without a start, as where that directory was deleted, a relative name means none. The other
    // variables are no substitute for what the user chose.
    return path.is_absolute() ? path.string() : std::string();
  }
  // The XDG specification wants relative ones ignored. No HOME is relative but by mistake.
  const auto is_absolute = [](const std::string& name) { return name.starts_with('/'); };
  const std::string cache = environment("XDG_CACHE_HOME");
  if (is_absolute(cache)) return cache + "/plait";
  const std::string home = environment("HOME");
  return is_absolute(home) ? home + "/.cache/plait" : std::string();
}

std::string inspect_cache_directory(const std::string& directory) {
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

void remove_stale_temporaries(const std::string& directory) {
  DIR* listing = ::opendir(directory.c_str());
  if (listing == nullptr) return;
  const std::time_t now = std::time(nullptr);
  while (const dirent* entry = ::readdir(listing)) {
    if (std::strstr(entry->d_name, ".tmp.") == nullptr) continue;
    const std::string path = directory + "/" + entry->d_name;
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || now - info.st_mtime <= kStaleSeconds) continue;
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  ::closedir(listing);
}

}  // namespace plait
