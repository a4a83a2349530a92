// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/temporary_directory.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "plait/error.h"

namespace plait {
namespace {

std::filesystem::path make_directory(const std::filesystem::path& prefix) {
  std::string pattern = prefix.string() + "XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw Error(ErrorCode::kIo, "temporary directory", prefix.string(),
                std::string("a path where directories can be made (") + std::strerror(errno) + ")");
  }
  return pattern;
}

}  // namespace

TemporaryDirectory::TemporaryDirectory(const std::filesystem::path& prefix)
    : directory_(make_directory(prefix)) {}

}  // namespace plait
