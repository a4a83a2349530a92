// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "core/leftover.h"
#include "core/text.h"
#include "plait/error.h"

namespace plait {
namespace {

constexpr std::int64_t kMaxStreamBytes = std::int64_t{1} << 28;

[[noreturn]] void fail(std::string_view field, const std::string& path, const std::string& reason,
                       const std::string& expected) {
  throw Error(ErrorCode::kIo, std::string(field), quote_text(path) + " (" + reason + ")", expected);
}

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return value_; }
  int release() noexcept {
    const int value = value_;
    value_ = -1;
    return value;
  }

 private:
  int value_;
};

/// A name in the folder of `path` that nobody else takes: processes of two containers may have one
/// id, so it holds the time too. It does not grow with the name of the file, which may be as long
/// as a name can be.
std::filesystem::path name_beside(const std::string& path) {
  static std::atomic<unsigned> serial{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return std::filesystem::path(path).parent_path() /
         (".plait-" + std::to_string(getpid()) + "-" + std::to_string(serial.fetch_add(1)) + "-" +
          std::to_string(now));
}

constexpr const char* kWritable = "a path that can be written";

/// Where the bytes go. A link is followed: it stays one.
struct Target {
  std::string path;
  bool in_place = false;  // a device or a pipe, which must not be replaced by a file
  mode_t mode = 0;        // of the file that is there; 0: there is none
};

Target inspect_target(const std::string& path, std::string_view field) {
  if (path.empty()) fail(field, path, "empty path", kWritable);
  Target target{path};
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) fail(field, path, std::strerror(errno), kWritable);
    if (lstat(path.c_str(), &info) == 0) fail(field, path, "a link to nothing", kWritable);
    return target;
  }
  if (S_ISDIR(info.st_mode)) fail(field, path, "a directory", kWritable);
  if (access(path.c_str(), W_OK) != 0) fail(field, path, std::strerror(errno), kWritable);
  target.in_place = !S_ISREG(info.st_mode);
  target.mode = info.st_mode & 07777U;
  if (target.in_place) return target;
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own {};
    if (fstat(stream, &own) == 0 && own.st_dev == info.st_dev && own.st_ino == info.st_ino) {
      fail(field, path, "where this program prints", "another file");
    }
  }
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::canonical(path, error);
  if (!error) target.path = resolved.string();
  return target;
}

void write_all(const Descriptor& file, std::span<const std::string_view> pieces,
               const std::string& path, std::string_view field) {
  for (std::string_view piece : pieces) {
    while (!piece.empty()) {
      const ssize_t put = write(file.get(), piece.data(), piece.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail(field, path, std::strerror(errno), kWritable);
      piece.remove_prefix(static_cast<std::size_t>(put));
    }
  }
}

/// Opens a new file with the mode that any new file gets. Reading and setting back the umask
/// instead would race with other threads that create files.
Descriptor create(const std::filesystem::path& name, const std::string& path,
                  std::string_view field) {
  const int file = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) fail(field, path, std::strerror(errno), kWritable);
  return Descriptor(file);
}

}  // namespace

std::string read_file(const std::string& path, std::string_view field, std::int64_t limit) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail(field, path, std::strerror(errno), "a readable file");
  struct stat info {};
  if (fstat(file.get(), &info) != 0) fail(field, path, std::strerror(errno), "a readable file");
  if (S_ISDIR(info.st_mode)) fail(field, path, "a directory", "a readable file");
  // The size of a file is known; a device or a pipe may never end.
  if (!S_ISREG(info.st_mode)) limit = std::min(limit, kMaxStreamBytes);
  const std::string most = "at most " + std::to_string(limit) + " bytes";
  std::string content;
  if (S_ISREG(info.st_mode)) {
    if (info.st_size > limit) fail(field, path, std::to_string(info.st_size) + " bytes", most);
    content.reserve(static_cast<std::size_t>(info.st_size) + 1);
  }
  std::vector<char> chunk(std::size_t{1} << 20);
  for (;;) {
    const ssize_t got = read(file.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(field, path, std::strerror(errno), "a readable file");
    if (got == 0) return content;
    content.append(chunk.data(), static_cast<std::size_t>(got));
    if (static_cast<std::int64_t>(content.size()) > limit) fail(field, path, "longer", most);
  }
}

void require_writable(const std::string& path, std::string_view field) {
  const Target target = inspect_target(path, field);
  if (target.in_place) return;
  const Leftover temporary(name_beside(target.path));
  create(temporary.path(), path, field);
}

void write_file_atomic(const std::string& path, std::span<const std::string_view> pieces,
                       std::string_view field) {
  const Target target = inspect_target(path, field);
  if (target.in_place) {
    const Descriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (file.get() < 0) fail(field, path, std::strerror(errno), kWritable);
    write_all(file, pieces, path, field);
    return;
  }
  const Leftover temporary(name_beside(target.path));
  Descriptor file = create(temporary.path(), path, field);
  if (target.mode != 0 && fchmod(file.get(), target.mode) != 0) {
    fail(field, path, std::strerror(errno), kWritable);
  }
  write_all(file, pieces, path, field);
  if (close(file.release()) != 0) fail(field, path, std::strerror(errno), kWritable);
  if (rename(temporary.path().c_str(), target.path.c_str()) != 0) {
    fail(field, path, std::strerror(errno), kWritable);
  }
}

}  // namespace plait
