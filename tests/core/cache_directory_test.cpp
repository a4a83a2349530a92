// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/cache_directory.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_directory.h"

namespace plait {
namespace {

namespace fs = std::filesystem;

/// Evaluates `condition` in a process of its own, which no call of default_cache_directory was made
/// in, with nothing but `variables` set.
bool in_fresh_process(const std::vector<std::pair<const char*, std::string>>& variables,
                      const std::function<bool()>& condition) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const char* name : {"PLAIT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) ::unsetenv(name);
    for (const auto& [name, value] : variables) ::setenv(name, value.c_str(), 1);
    const bool holds = condition();
    if (!holds) std::fprintf(stderr, "got %s\n", default_cache_directory().c_str());
    ::_exit(holds ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(CacheDirectory, IsTheFirstOfTheVariables) {
  const auto is = [](const std::string& expected) {
    return [=] { return default_cache_directory() == expected; };
  };
  EXPECT_TRUE(in_fresh_process({{"PLAIT_CACHE_DIR", "/a"}, {"XDG_CACHE_HOME", "/b"}}, is("/a")));
  EXPECT_TRUE(in_fresh_process({{"XDG_CACHE_HOME", "/b"}, {"HOME", "/c"}}, is("/b/plait")));
  EXPECT_TRUE(in_fresh_process({{"HOME", "/c"}}, is("/c/.cache/plait")));
  EXPECT_TRUE(in_fresh_process({}, is("")));
  EXPECT_TRUE(in_fresh_process({{"XDG_CACHE_HOME", "b"}, {"HOME", "/c"}}, is("/c/.cache/plait")));
  EXPECT_TRUE(in_fresh_process({{"XDG_CACHE_HOME", "b"}, {"HOME", "c"}}, is("")));
}

TEST(CacheDirectory, ARelativeOneStaysWhereTheProcessWas) {
  const test::TemporaryDirectory directory;
  const std::string expected = (fs::canonical(directory.path()) / "cache").string();
  EXPECT_TRUE(in_fresh_process({{"PLAIT_CACHE_DIR", "cache"}}, [&] {
    fs::current_path(directory.path());
    const std::string before = default_cache_directory();
    fs::current_path("/");
    return before == expected && default_cache_directory() == expected;
  }));
}

TEST(CacheDirectory, ARelativeOneOfADeletedDirectoryIsNone) {
  const test::TemporaryDirectory directory;
  const auto holds_where_deleted = [&](const std::string& chosen, const std::string& expected) {
    return in_fresh_process({{"PLAIT_CACHE_DIR", chosen}, {"HOME", "/c"}}, [&] {
      const std::string gone = directory.path("gone");
      fs::create_directory(gone);
      fs::current_path(gone);
      fs::remove(gone);
      return default_cache_directory() == expected;
    });
  };
  EXPECT_TRUE(holds_where_deleted("cache", ""));
  EXPECT_TRUE(holds_where_deleted("/cache", "/cache"));
}

}  // namespace
}  // namespace plait
