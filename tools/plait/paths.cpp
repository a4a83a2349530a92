// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/paths.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "core/file.h"
#include "core/text.h"
#include "plait/error.h"

namespace plait::tool {
namespace {

/// What tells whether two paths name one file, whether it is there yet or not; none for devices and
/// pipes, which are not written over.
std::vector<std::string> identities_of(const std::string& path) {
  std::vector<std::string> out;
  struct stat facts;
  if (::stat(path.c_str(), &facts) == 0) {
    if (!S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode)) return out;
    out.push_back(std::to_string(facts.st_dev) + ":" + std::to_string(facts.st_ino));
  }
  std::error_code error;
  // Of a relative path that is not there yet, weakly_canonical alone leaves it relative.
  const std::filesystem::path whole =
      std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  if (!error) out.push_back(whole.string());
  return out;
}

}  // namespace

void Paths::input(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  for (const std::string& identity : identities_of(path)) named_.emplace(identity, option);
}

void Paths::output(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  for (const std::string& identity : identities_of(path)) {
    const auto other = named_.find(identity);
    if (other == named_.end()) continue;
    throw Error(ErrorCode::kInvalidArgument, option, quote_text(path),
                "another file than that of " + other->second);
  }
  require_writable(path, option);
  input(option, path);
}

}  // namespace plait::tool
