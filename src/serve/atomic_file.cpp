// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/file.h"
#include "plait/error.h"
#include "serve/line_reader.h"

namespace plait::serve {
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
  std::string name = path_ + ".XXXXXX";
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) refuse(errno);
  ::close(fd);
  ::unlink(name.c_str());
}

void AtomicFile::write(std::string_view content) const {
  write_file_atomic(path_, {&content, 1}, option_);
}

}  // namespace plait::serve
