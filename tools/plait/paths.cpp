// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/paths.h"

#include <filesystem>
#include <system_error>

#include "core/file.h"
#include "core/text.h"
#include "plait/error.h"

namespace plait::tool {
namespace {

namespace fs = std::filesystem;

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  // Devices and pipes are not written over.
  if (fs::is_other(fs::status(a, error))) return false;
  if (fs::equivalent(a, b, error)) return true;
  const fs::path first = fs::weakly_canonical(a, error);
  return !error && first == fs::weakly_canonical(b, error) && !error;
}

}  // namespace

void Paths::input(const std::string& option, const std::string& path) {
  if (!path.empty()) named_.emplace_back(option, path);
}

void Paths::output(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  for (const auto& [other, other_path] : named_) {
    if (!same_file(other_path, path)) continue;
    throw Error(ErrorCode::kInvalidArgument, option, quote_text(path),
                "another file than that of " + other);
  }
  require_writable(path, option);
  named_.emplace_back(option, path);
}

}  // namespace plait::tool
