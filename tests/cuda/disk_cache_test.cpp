// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The disk cache with builders that are quick and countable; no compiler, no GPU.
#include "cuda/jit/disk_cache.h"
#include "support/temporary_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <thread>

namespace plait::cuda {
namespace {

namespace fs = std::filesystem;

CompileUnit unit_of(const std::string& source) {
  CompileUnit unit;
  unit.symbol = "plait_test";
  unit.source = source;
  unit.flags = {"--gpu-architecture=sm_80"};
  unit.headers = {{"a.h", "int a;"}, {"b.h", "int b;"}};
  return unit;
}

DiskKey key_of(const std::string& source) { return disk_key(unit_of(source), {{13, 0}, 7}); }

CompiledKernel kernel_of(const std::string& content) {
  CompiledKernel kernel;
  kernel.symbol = "plait_test";
  kernel.cubin.assign(content.begin(), content.end());
  kernel.resources.registers = 40;
  kernel.launch.threads = 128;
  kernel.warnings = {"ptxas info : (C7508) something"};
  return kernel;
}

std::string text_of(const CompiledKernel& kernel) {
  return {kernel.cubin.begin(), kernel.cubin.end()};
}

/// Runs `body` in a child process, which exits 0 unless it throws.
pid_t in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      body();
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  return child;
}

int exit_status(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Appends one byte: counts builds across processes.
void mark_build(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (descriptor < 0 || ::write(descriptor, "x", 1) != 1) throw std::runtime_error("cannot mark");
  ::close(descriptor);
}

std::string only_entry(const std::string& directory) {
  std::string found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    EXPECT_TRUE(found.empty()) << "more than one file: " << entry.path();
    found = entry.path().string();
  }
  return found;
}

TEST(DiskCache, SecondLookUpComesFromDiskUnchanged) {
  const test::TemporaryDirectory directory;
  DiskCache cache(directory.path("cache"));
  ASSERT_EQ(cache.reason(), "");
  const CompiledKernel built = cache.get_or_build(key_of("k"), [] { return kernel_of("code"); });
  DiskCache other(directory.path("cache"));
  const CompiledKernel found = other.get_or_build(
      key_of("k"), []() -> CompiledKernel { throw std::runtime_error("built again"); });
  EXPECT_EQ(text_of(found), "code");
  EXPECT_EQ(found.symbol, built.symbol);
  EXPECT_EQ(found.resources, built.resources);
  EXPECT_EQ(found.launch, built.launch);
  EXPECT_EQ(found.warnings, built.warnings);
  EXPECT_EQ(other.counters().hits, 1);
}

TEST(DiskCache, DirectoryAndEntriesArePrivate) {
  const test::TemporaryDirectory directory;
  DiskCache cache(directory.path("a/b/cache"));
  cache.get_or_build(key_of("k"), [] { return kernel_of("code"); });
  struct stat info {};
  ASSERT_EQ(::stat(directory.path("a/b/cache").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(::stat(only_entry(directory.path("a/b/cache")).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(DiskCache, RelativeDirectoryDoesNotFollowTheProcess) {
  const test::TemporaryDirectory directory;
  EXPECT_EQ(exit_status(in_child([&] {
              fs::current_path(directory.path());
              DiskCache cache("cache");
              fs::create_directory("elsewhere");
              fs::current_path("elsewhere");
              cache.get_or_build(key_of("k"), [] { return kernel_of("code"); });
              if (!cache.load(key_of("k")) || cache.compilers_of(key_of("k")).size() != 1)
                ::_exit(3);
            })),
            0);
  EXPECT_NE(only_entry(directory.path("cache")), "");
  EXPECT_TRUE(fs::is_empty(directory.path("elsewhere")));
}

TEST(DiskCache, EveryInputChangesTheKey) {
  const CompileUnit base = unit_of("k");
  const DiskKey key = disk_key(base, {{13, 0}});
  const auto changed = [&](const std::function<void(CompileUnit&)>& change) {
    CompileUnit unit = base;
    change(unit);
    return hash_text(disk_key(unit, {{13, 0}}));
  };
  std::vector<std::string> hashes = {hash_text(key)};
  hashes.push_back(changed([](CompileUnit& unit) { unit.source += " "; }));
  hashes.push_back(changed([](CompileUnit& unit) { unit.symbol += "2"; }));
  hashes.push_back(changed([](CompileUnit& unit) { unit.variant = "struct V {};"; }));
  hashes.push_back(changed([](CompileUnit& unit) { unit.flags[0] = "--gpu-architecture=sm_90a"; }));
  hashes.push_back(changed([](CompileUnit& unit) { unit.flags.push_back("--use_fast_math"); }));
  hashes.push_back(changed([](CompileUnit& unit) { unit.headers[1].second = "int c;"; }));
  hashes.push_back(changed([](CompileUnit& unit) { unit.headers[1].first = "c.h"; }));
  // The same bytes, cut differently.
  hashes.push_back(changed([](CompileUnit& unit) {
    unit.headers = {{"a.h", "int a;b.h"}, {"", "int b;"}};
  }));
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end());
  EXPECT_NE(entry_name(key), entry_name(disk_key(base, {{13, 1}})));
  EXPECT_NE(entry_name(key), entry_name(disk_key(base, {{13, 0}, 1})));
}

TEST(DiskCache, SameSymbolWithTwoSourcesKeepsBoth) {
  const test::TemporaryDirectory directory;
  DiskCache cache(directory.path("cache"));
  cache.get_or_build(key_of("first"), [] { return kernel_of("1"); });
  cache.get_or_build(key_of("second"), [] { return kernel_of("2"); });
  const auto never = []() -> CompiledKernel { throw std::runtime_error("built again"); };
  EXPECT_EQ(text_of(cache.get_or_build(key_of("first"), never)), "1");
  EXPECT_EQ(text_of(cache.get_or_build(key_of("second"), never)), "2");
}

TEST(DiskCache, AnyDamageIsRecognisedAndBuiltAgain) {
  const test::TemporaryDirectory directory;
  const DiskKey key = key_of("k");
  const std::vector<char> good = encode_entry(key, kernel_of("some machine code"));
  ASSERT_TRUE(decode_entry(key, good).has_value());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(decode_entry(key, std::span(good).first(size))) << "cut to " << size;
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::vector<char> bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    EXPECT_FALSE(decode_entry(key, bad)) << "byte " << at;
  }
  std::vector<char> longer = good;
  longer.push_back(0);
  EXPECT_FALSE(decode_entry(key, longer));
  EXPECT_FALSE(decode_entry(key_of("other"), good)) << "a renamed file must not be believed";

  for (const std::size_t size : {std::size_t{0}, std::size_t{50}, good.size() - 1}) {
    DiskCache cache(directory.path("cache"));
    cache.get_or_build(key, [] { return kernel_of("code"); });
    fs::resize_file(only_entry(directory.path("cache")), size);
    EXPECT_EQ(text_of(cache.get_or_build(key, [] { return kernel_of("code"); })), "code");
    EXPECT_EQ(cache.counters().built, 1 + (size == 0)) << "the file cut to " << size;
    EXPECT_GE(cache.counters().damaged, 1);
    EXPECT_EQ(cache.counters().unstored, 0);
    ASSERT_TRUE(DiskCache(directory.path("cache")).load(key)) << "rebuilt entry must be stored";
  }
}

TEST(DiskCache, EightProcessesBuildOneKeyOnce) {
  const test::TemporaryDirectory directory;
  std::vector<pid_t> children;
  for (int process = 0; process < 8; ++process) {
    children.push_back(in_child([&] {
      DiskCache cache(directory.path("cache"));
      const CompiledKernel kernel = cache.get_or_build(key_of("k"), [&] {
        mark_build(directory.path("builds"));
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        return kernel_of("code");
      });
      if (text_of(kernel) != "code") throw std::runtime_error("wrong code");
    }));
  }
  for (pid_t child : children) EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(fs::file_size(directory.path("builds")), 1u);
  only_entry(directory.path("cache"));  // no lock or temporary file stays behind
}

TEST(DiskCache, EightProcessesBuildDifferentKeysAtTheSameTime) {
  const test::TemporaryDirectory directory;
  std::vector<pid_t> children;
  for (int process = 0; process < 8; ++process) {
    children.push_back(in_child([&] {
      DiskCache cache(directory.path("cache"));
      const std::string name = "k" + std::to_string(process);
      const CompiledKernel kernel = cache.get_or_build(key_of(name), [&] {
        mark_build(directory.path("builds"));
        // Nobody goes on before all have begun: keys that waited for each other would stay here.
        for (int round = 0; fs::file_size(directory.path("builds")) < 8; ++round) {
          if (round == 4000) throw std::runtime_error("the others never began");
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return kernel_of(name);
      });
      if (text_of(kernel) != name) throw std::runtime_error("wrong code");
    }));
  }
  for (pid_t child : children) EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(fs::file_size(directory.path("builds")), 8u);
}

TEST(DiskCache, KilledBuilderBlocksNobody) {
  const test::TemporaryDirectory directory;
  int ready[2] = {};
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t builder = in_child([&] {
    DiskCache cache(directory.path("cache"));
    cache.get_or_build(key_of("k"), [&]() -> CompiledKernel {
      if (::write(ready[1], "x", 1) != 1) throw std::runtime_error("pipe");
      for (;;) ::pause();
    });
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const pid_t waiter = in_child([&] {
    DiskCache cache(directory.path("cache"));
    if (text_of(cache.get_or_build(key_of("k"), [] { return kernel_of("mine"); })) != "mine") {
      throw std::runtime_error("wrong code");
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(::waitpid(waiter, nullptr, WNOHANG), 0)
      << "the waiter must wait while the builder lives";
  const auto start = std::chrono::steady_clock::now();
  ::kill(builder, SIGKILL);
  EXPECT_EQ(exit_status(builder), 128 + SIGKILL);
  EXPECT_EQ(exit_status(waiter), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, DiskCache::kPatience / 3);
  only_entry(directory.path("cache"));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(DiskCache, FailedBuildPassesItsErrorOnAndLetsTheNextTry) {
  const test::TemporaryDirectory directory;
  DiskCache cache(directory.path("cache"));
  EXPECT_THROW(
      cache.get_or_build(key_of("k"), []() -> CompiledKernel { throw std::runtime_error("no"); }),
      std::runtime_error);
  EXPECT_EQ(text_of(cache.get_or_build(key_of("k"), [] { return kernel_of("code"); })), "code");
  only_entry(directory.path("cache"));
}

/// Runs `body` as an unprivileged user where the test runs as root, whom permissions do not bind.
int as_ordinary_user(const std::string& owned, const std::function<void()>& body) {
  constexpr uid_t kNobody = 65534;
  const bool root = ::geteuid() == 0;
  if (root && ::chown(owned.c_str(), kNobody, kNobody) != 0) return -1;
  return exit_status(in_child([&] {
    if (root && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) ::_exit(2);
    body();
  }));
}

TEST(DiskCache, ReadOnlyDirectoryIsReadAndNotWritten) {
  const test::TemporaryDirectory directory;
  fs::permissions(directory.path(), fs::perms::all);
  fs::create_directory(directory.path("cache"));
  const int status = as_ordinary_user(directory.path("cache"), [&] {
    ::chmod(directory.path("cache").c_str(), 0700);
    DiskCache(directory.path("cache")).get_or_build(key_of("old"), [] { return kernel_of("old"); });
    ::chmod(directory.path("cache").c_str(), 0500);
    DiskCache cache(directory.path("cache"));
    if (!cache.readable() || cache.writable() || cache.reason().empty()) ::_exit(3);
    const auto never = []() -> CompiledKernel { throw std::runtime_error("built again"); };
    if (text_of(cache.get_or_build(key_of("old"), never)) != "old") ::_exit(4);
    if (text_of(cache.get_or_build(key_of("new"), [] { return kernel_of("new"); })) != "new") {
      ::_exit(5);
    }
    if (cache.counters().unstored != 1) ::_exit(6);
  });
  EXPECT_EQ(status, 0);
  EXPECT_NE(only_entry(directory.path("cache")), "");
}

TEST(DiskCache, FullFileSystemKeepsKernelsInMemory) {
  const test::TemporaryDirectory directory;
  DiskCache cache(directory.path("cache"));
  // A limit on file size stands in for a full disk: the write fails half way.
  const pid_t child = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{64, 64};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    if (text_of(cache.get_or_build(key_of("k"), [] { return kernel_of("code"); })) != "code") {
      ::_exit(3);
    }
    if (cache.writable() || cache.reason().find("cannot write") == std::string::npos) ::_exit(4);
  });
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_TRUE(fs::is_empty(directory.path("cache"))) << "half a file must not stay";
}

TEST(DiskCache, WhatAKilledProcessOfTheSameIdLeftDoesNotEndWriting) {
  const test::TemporaryDirectory directory;
  DiskCache cache(directory.path("cache"));
  // In a container, a process often has the id of the one before it.
  const std::string entry = directory.path("cache/" + entry_name(key_of("k")));
  for (int serial = 0; serial < 1000; ++serial) {
    std::ofstream(entry + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(serial));
  }
  EXPECT_EQ(text_of(cache.get_or_build(key_of("k"), [] { return kernel_of("code"); })), "code");
  EXPECT_TRUE(cache.writable()) << cache.reason();
  EXPECT_TRUE(cache.load(key_of("k")));
}

TEST(DiskCache, ForeignOwnedDirectoryIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a directory of another user";
  const test::TemporaryDirectory directory;
  fs::create_directory(directory.path("cache"));
  ASSERT_EQ(::chown(directory.path("cache").c_str(), 12345, 12345), 0);
  DiskCache cache(directory.path("cache"));
  EXPECT_FALSE(cache.readable());
  EXPECT_NE(cache.reason().find("belongs to user 12345"), std::string::npos) << cache.reason();
  EXPECT_EQ(text_of(cache.get_or_build(key_of("k"), [] { return kernel_of("code"); })), "code");
  EXPECT_TRUE(fs::is_empty(directory.path("cache")));
}

TEST(DiskCache, DirectoryThatOthersCanWriteIsRefused) {
  const test::TemporaryDirectory directory;
  fs::create_directory(directory.path("cache"));
  fs::permissions(directory.path("cache"), fs::perms::all);
  DiskCache cache(directory.path("cache"));
  EXPECT_FALSE(cache.readable());
  EXPECT_NE(cache.reason().find("written by others"), std::string::npos) << cache.reason();
}

TEST(DiskCache, FileInPlaceOfTheDirectoryIsRefused) {
  const test::TemporaryDirectory directory;
  std::ofstream(directory.path("cache")) << "x";
  EXPECT_FALSE(DiskCache(directory.path("cache")).readable());
  EXPECT_FALSE(DiskCache("").readable());
}

TEST(DiskCache, NoDirectoryIsReportedWithTheVariableThatWasToNameOne) {
  const char* set = std::getenv("PLAIT_CACHE_DIR");
  const std::string before = set == nullptr ? "" : set;
  ::setenv("PLAIT_CACHE_DIR", "cache", 1);
  const std::string relative = DiskCache("").reason();
  ::unsetenv("PLAIT_CACHE_DIR");
  const std::string none = DiskCache("").reason();
  if (!before.empty()) ::setenv("PLAIT_CACHE_DIR", before.c_str(), 1);
  EXPECT_NE(relative.find("PLAIT_CACHE_DIR is cache, which is relative"), std::string::npos)
      << relative;
  EXPECT_NE(none.find("none of PLAIT_CACHE_DIR"), std::string::npos) << none;
}

TEST(DiskCache, SymbolicLinkIsNotFollowedToAnEntry) {
  const test::TemporaryDirectory directory;
  DiskCache cache(directory.path("cache"));
  cache.get_or_build(key_of("k"), [] { return kernel_of("code"); });
  const std::string entry = only_entry(directory.path("cache"));
  fs::rename(entry, directory.path("elsewhere"));
  fs::create_symlink(directory.path("elsewhere"), entry);
  EXPECT_FALSE(cache.load(key_of("k")));
}

TEST(DiskCache, BuildsOfOneCompilerVersionAreKeptApart) {
  const test::TemporaryDirectory directory;
  DiskCache cache(directory.path("cache"));
  for (const std::uint64_t build : {1U, 2U}) {
    const auto compile = [&] { return kernel_of(std::to_string(build)); };
    cache.get_or_build(disk_key(unit_of("k"), {{13, 0}, build}), compile);
  }
  for (const std::uint64_t build : {1U, 2U}) {
    const auto found = cache.load(disk_key(unit_of("k"), {{13, 0}, build}));
    ASSERT_TRUE(found);
    EXPECT_EQ(text_of(*found), std::to_string(build));
  }
  EXPECT_FALSE(cache.load(disk_key(unit_of("k"), {{13, 0}, 3})));
  const DiskKey key = key_of("k");
  EXPECT_FALSE(decode_entry(disk_key(unit_of("k"), {{13, 0}, 1}),
                            encode_entry(key, kernel_of("of another build"))));
}

TEST(DiskCache, WhatIsNoFileOfOursInAnEntrysPlaceIsNotRead) {
  const test::TemporaryDirectory directory;
  DiskCache cache(directory.path("cache"));
  const std::string entry = directory.path("cache/" + entry_name(key_of("k")));
  const auto build = [] { return kernel_of("code"); };
  std::ofstream(entry) << "x";
  fs::resize_file(entry, std::uintmax_t{1} << 40);  // a hole
  EXPECT_EQ(text_of(cache.get_or_build(key_of("k"), build)), "code");
  EXPECT_TRUE(cache.load(key_of("k"))) << "replaced";
  fs::remove(entry);
  ASSERT_EQ(::mkfifo(entry.c_str(), 0600), 0);
  EXPECT_EQ(text_of(cache.get_or_build(key_of("k"), build)), "code");
  EXPECT_TRUE(cache.load(key_of("k"))) << "replaced";
  fs::remove(entry);
  fs::create_directory(entry);
  EXPECT_EQ(text_of(cache.get_or_build(key_of("k"), build)), "code");
  EXPECT_FALSE(cache.writable()) << "what cannot be replaced";
}

TEST(DiskCache, CompilersOfFindsWhatOthersMade) {
  const test::TemporaryDirectory directory;
  DiskCache cache(directory.path("cache"));
  const std::vector<CompilerBuild> made = {
      {{13, 0}, ~std::uint64_t{0}}, {{13, 0}, 5}, {{12, 10}, 6}, {{12, 8}, 0}};
  for (const std::size_t index : {2U, 0U, 3U, 1U}) {
    cache.get_or_build(disk_key(unit_of("k"), made[index]), [] { return kernel_of("code"); });
  }
  EXPECT_EQ(cache.compilers_of(key_of("k")), made);
  EXPECT_TRUE(cache.compilers_of(key_of("other")).empty());
  const std::string name = entry_name(key_of("k"));
  EXPECT_TRUE(compiler_of(name, key_of("k")));
  for (const std::string& other :
       {name + "x", name.substr(0, name.size() - 4), hash_text(key_of("k")) + "-13.0.plk",
        hash_text(key_of("k")) + ".lock", std::string()}) {
    EXPECT_FALSE(compiler_of(other, key_of("k"))) << other;
  }
}

}  // namespace
}  // namespace plait::cuda
