// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "plait/error.h"

namespace plait {
namespace {

[[noreturn]] void fail(std::string_view field, const std::string& path, const std::string& reason,
                       const std::string& expected) {
  throw Error(ErrorCode::kIo, std::string(field), "\"" + path + "\" (" + reason + ")", expected);
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

// Removes the temporary file unless the rename happened.
class Temporary {
 public:
  explicit Temporary(std::string path) : path_(std::move(path)) {}
  ~Temporary() {
    if (!path_.empty()) unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  void keep() noexcept { path_.clear(); }

 private:
  std::string path_;
};

/// Creates a file beside `path` with the mode that any new file gets; its path goes to `name`.
/// Reading and setting back the umask instead would race with other threads that create files.
Descriptor create_beside(const std::string& path, std::string& name) {
  static std::atomic<unsigned> serial{0};
  for (;;) {
    name = path + ".tmp-" + std::to_string(getpid()) + "-" + std::to_string(serial.fetch_add(1));
    const int file = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0 || errno != EEXIST) return Descriptor(file);
  }
}

}  // namespace

std::string read_file(const std::string& path, std::string_view field, std::int64_t limit) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail(field, path, std::strerror(errno), "a readable file");
  struct stat info {};
  if (fstat(file.get(), &info) != 0) fail(field, path, std::strerror(errno), "a readable file");
  if (S_ISDIR(info.st_mode)) fail(field, path, "a directory", "a readable file");
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

void write_file_atomic(const std::string& path, std::span<const std::string_view> pieces,
                       std::string_view field) {
  static const std::string kExpected = "a path that can be written";
  struct stat info {};
  if (path.empty()) fail(field, path, "empty path", kExpected);
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    fail(field, path, "a directory", kExpected);
  }
  std::string name;
  Descriptor file = create_beside(path, name);
  if (file.get() < 0) fail(field, path, std::strerror(errno), kExpected);
  Temporary temporary(name);
  for (std::string_view piece : pieces) {
    while (!piece.empty()) {
      const ssize_t put = write(file.get(), piece.data(), piece.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail(field, path, std::strerror(errno), kExpected);
      piece.remove_prefix(static_cast<std::size_t>(put));
    }
  }
  if (close(file.release()) != 0) fail(field, path, std::strerror(errno), kExpected);
  if (rename(name.c_str(), path.c_str()) != 0) fail(field, path, std::strerror(errno), kExpected);
  temporary.keep();
}

}  // namespace plait
