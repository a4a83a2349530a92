// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "plait/error.h"
#include "serve/line_reader.h"

namespace plait::serve {
namespace {

/// Opens a new file beside `path`; its name replaces `name`.
int open_temporary(const std::string& path, std::string& name) {
  name = path + ".XXXXXX";
  return ::mkostemp(name.data(), O_CLOEXEC);
}

}  // namespace

void AtomicFile::refuse(int error) const {
  throw Error(ErrorCode::kIo, option_, quote_text(path_) + " (" + std::strerror(error) + ")",
              "a path that can be written");
}

AtomicFile::AtomicFile(std::string path, std::string option)
    : path_(std::move(path)), option_(std::move(option)) {
  if (path_.empty()) refuse(ENOENT);
  struct stat info {};
  if (::stat(path_.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) refuse(EISDIR);
    if (::access(path_.c_str(), W_OK) != 0) refuse(errno);
  }
  std::string name;
  const int fd = open_temporary(path_, name);
  if (fd < 0) refuse(errno);
  ::close(fd);
  ::unlink(name.c_str());
}

void AtomicFile::write(std::string_view content) const {
  std::string name;
  const int fd = open_temporary(path_, name);
  if (fd < 0) refuse(errno);
  const auto fail = [&](int error) {
    ::close(fd);
    ::unlink(name.c_str());
    refuse(error);
  };
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(errno);
    }
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  // mkstemp makes private files; a report gets what the user's umask allows.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (::fchmod(fd, 0666 & ~mask) != 0) fail(errno);
  if (::close(fd) != 0) {
    const int error = errno;
    ::unlink(name.c_str());
    refuse(error);
  }
  if (::rename(name.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(name.c_str());
    refuse(error);
  }
}

}  // namespace plait::serve
