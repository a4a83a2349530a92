// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/temporary_directory.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "plait/error.h"

namespace plait {

TemporaryDirectory::TemporaryDirectory(const std::filesystem::path& prefix) {
  std::string pattern = prefix.string() + "XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw Error(ErrorCode::kIo, "temporary directory", prefix.string(),
                std::string("a path where directories can be made (") + std::strerror(errno) + ")");
  }
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  // Its user may have closed it.
  std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace plait
