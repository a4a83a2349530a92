// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "case.h"
#include "cpu/user_variant.h"
#include "plait/error.h"
#include "support/temporary_directory.h"

namespace plait::test {
namespace {

namespace fs = std::filesystem;

/// A cache directory of the test's own.
class CpuUserVariant : public testing::Test {
 protected:
  void SetUp() override { setenv("PLAIT_CACHE_DIR", temporary_.path().c_str(), 1); }
  void TearDown() override { unsetenv("PLAIT_CACHE_DIR"); }
  std::vector<fs::path> entries() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      if (entry.path().extension() == ".so") found.push_back(entry.path());
    }
    return found;
  }
  TemporaryDirectory temporary_;
  fs::path directory_ = temporary_.path();
};

Case small() {
  Case c;
  c.spec.num_qo_heads = 4;
  c.spec.num_kv_heads = 2;
  c.spec.head_dim_qk = c.spec.head_dim_vo = 32;
  c.spec.q_dtype = c.spec.kv_dtype = c.spec.o_dtype = DType::kF32;
  c.requests = {{1, 100}, {20, 50}};
  return c;
}

// Gemma's soft cap and ALiBi, written as a user would, against the built-in ones.
constexpr const char* kCapped = R"(
struct Capped : VariantBase {
  static constexpr bool kHasLogits = true;
  template <class T>
  PLAIT_HD static T logits(T s, const LogitSite<T>& at, const Params& p) {
    return p.cap * tanhf(s / p.cap) + p.slopes[at.qo_head] * at.distance;
  }
};
)";

TEST_F(CpuUserVariant, EqualsTheBuiltIn) {
  Case builtin = small();
  builtin.spec.logits_soft_cap = 3.0;
  builtin.spec.alibi = true;
  builtin.make(1);
  Case user = builtin;
  user.spec.logits_soft_cap = 0.0;
  user.spec.alibi = false;
  user.spec.variant = {"Capped", kCapped, {{"cap", false, {3.0F}}, {"slopes", true, user.slopes}}};
  user.slopes.clear();
  const Case::Answer want = builtin.run({});
  const Case::Answer got = user.run({});
  for (std::size_t i = 0; i < want.o.size(); ++i) ASSERT_NEAR(got.o[i], want.o[i], 1e-4) << i;
  EXPECT_EQ(entries().size(), 1U);
}

TEST_F(CpuUserVariant, MaskQueryKeyOutput) {
  Case plain = small();
  plain.spec.mask = MaskKind::kNone;
  plain.spec.window_left = 7;
  plain.spec.sm_scale = 0.25;
  plain.make(2);
  Case user = plain;
  user.spec.window_left = -1;
  user.spec.sm_scale = 1.0;
  user.spec.variant = {"Windowed",
                       R"(
struct Windowed : VariantBase {
  static constexpr bool kHasMask = true;
  static constexpr bool kHasQuery = true;
  static constexpr bool kHasKey = true;
  static constexpr bool kHasOutput = true;
  template <class T> PLAIT_HD static T query(T x, const VectorSite&, const Params&) { return x * 0.5f; }
  template <class T> PLAIT_HD static T key(T x, const VectorSite&, const Params&) { return x * 0.5f; }
  template <class T> PLAIT_HD static T output(T x, const VectorSite& at, const Params&) { return x + at.dim; }
  template <class T> PLAIT_HD static bool visible(const LogitSite<T>& at, const Params& p) {
    return at.kv_pos >= at.q_pos - p.window;
  }
};
)",
                       {{"window", false, {7.0F}}}};
  const Case::Answer want = plain.run({});
  const Case::Answer got = user.run({});
  for (std::size_t i = 0; i < want.o.size(); ++i) {
    ASSERT_NEAR(got.o[i], want.o[i] + static_cast<double>(i % 32), 1e-4) << i;
  }
}

TEST_F(CpuUserVariant, SumReduction) {
  Case builtin = small();
  builtin.spec.reduction = Reduction::kSum;
  builtin.spec.sigmoid_bias = 0.5;
  builtin.spec.window_left = 7;
  builtin.make(3);
  Case user = builtin;
  user.spec.sigmoid_bias = 0.0;
  user.spec.variant = {"Weigh",
                       R"(
struct Weigh : VariantBase {
  static constexpr ReductionKind kReduction = ReductionKind::kSum;
  template <class T> PLAIT_HD static T weight(T s, const LogitSite<T>&, const Params& p) {
    return 1.0f / (1.0f + expf(-s - p.bias));
  }
};
)",
                       {{"bias", false, {0.5F}}}};
  const Case::Answer want = builtin.run({.kv_chunk = 16});
  const Case::Answer got = user.run({.kv_chunk = 16});
  for (std::size_t i = 0; i < want.o.size(); ++i) ASSERT_NEAR(got.o[i], want.o[i], 1e-4) << i;
}

TEST_F(CpuUserVariant, CompileErrorCarriesTheLog) {
  Case user = small();
  user.make(1);
  user.spec.variant = {"Broken", "struct Broken : VariantBase { no_such_type x; };", {}};
  try {
    user.run({});
    FAIL() << "compiled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCompile);
    EXPECT_NE(std::string(error.what()).find("no_such_type"), std::string::npos);
  }
  EXPECT_TRUE(entries().empty());
}

// A flag that is forgotten or misspelt must not leave a hook out in silence, nor one that is
// misspelt leave its flag without effect.
TEST_F(CpuUserVariant, HooksAndFlagsAgree) {
  Case user = small();
  user.make(1);
  const auto log_of = [&](const std::string& members) {
    user.spec.variant = {"Plain", "struct Plain : VariantBase { " + members + " };", {}};
    try {
      user.run({});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCompile) << error.what();
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string on_logits = "(T s, const LogitSite<T>&, const Params&) { return s; } ";
  const std::string on_vectors = "(T x, const VectorSite&, const Params&) { return x; } ";
  const struct {
    std::string flag;
    std::string hook;
  } kinds[] = {{"kHasQuery", "T query" + on_vectors},
               {"kHasKey", "T key" + on_vectors},
               {"kHasLogits", "T logits" + on_logits},
               {"kHasMask", "bool visible(const LogitSite<T>&, const Params&) { return true; } "},
               {"kHasOutput", "T output" + on_vectors}};
  for (const auto& kind : kinds) {
    const std::string flag = "static constexpr bool " + kind.flag + " = true; ";
    const std::string hook = "template <class T> PLAIT_HD static " + kind.hook;
    EXPECT_EQ(log_of(flag + hook), "");
    EXPECT_NE(log_of(flag).find(kind.flag + " has to say"), std::string::npos);
    EXPECT_NE(log_of(hook).find(kind.flag + " has to say"), std::string::npos);
  }
  EXPECT_NE(log_of("template <class T> PLAIT_HD static T weight" + on_logits).find("weight()"),
            std::string::npos);
}

// No kernel could call them, and nobody would notice.
TEST_F(CpuUserVariant, WhatHasAHooksNameIsAHook) {
  Case user = small();
  user.make(1);
  const auto expect_named = [&](const std::string& hook, const std::string& member) {
    SCOPED_TRACE(member);
    user.spec.variant = {"Plain", "struct Plain : VariantBase { " + member + " };", {}};
    try {
      user.run({});
      ADD_FAILURE() << "compiled";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCompile) << error.what();
      EXPECT_NE(std::string(error.what()).find(hook + "() has to be a public static member"),
                std::string::npos)
          << error.what();
    }
  };
  const std::string flag = "static constexpr bool kHasLogits = true; ";
  const std::string on_logits = "(float s, const LogitSite<float>&, const Params&) { return s; }";
  const std::string on_vectors = "(float x, const VectorSite&, const Params&) { return x; }";
  expect_named("query", "PLAIT_HD static float query" + on_vectors);
  expect_named("key", "PLAIT_HD static float key" + on_vectors);
  expect_named("logits", "PLAIT_HD static float logits" + on_logits);
  expect_named("logits", flag + "PLAIT_HD static float logits" + on_logits);
  expect_named(
      "visible",
      "PLAIT_HD static bool visible(const LogitSite<float>&, const Params&) { return 1; }");
  expect_named("weight", "PLAIT_HD static float weight" + on_logits);
  expect_named("output", "PLAIT_HD static float output" + on_vectors);
  expect_named("logits", "template <class T> PLAIT_HD static T logits(T s) { return s; }");
  const std::string hook =
      "template <class T> PLAIT_HD static T logits(T s, const LogitSite<T>&, const Params&) { "
      "return s; } ";
  expect_named("logits", flag + "private: " + hook);
  expect_named("logits",
               flag + "template <class T> PLAIT_HD T" + hook.substr(hook.find(" logits")));
}

/// A file system of its own at `directory`, in a mount namespace of its own, which takes root.
bool mount_memory(const fs::path& directory, unsigned long flags, const char* options) {
  return unshare(CLONE_NEWNS) == 0 &&
         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("none", directory.c_str(), "tmpfs", flags, options) == 0;
}

// No room for a header, for the library, for another file.
TEST_F(CpuUserVariant, CacheMayLieOnAFullDisk) {
  Case user = small();
  user.make(1);
  user.spec.variant = {"Plain", "struct Plain : VariantBase {};", {}};
  const Case::Answer want = user.run({});
  for (const char* limit : {"size=4k", "size=24k", "nr_inodes=1"}) {
    if (!mount_memory(directory_, 0, (std::string("mode=0700,") + limit).c_str())) {
      GTEST_SKIP() << "cannot mount a file system";
    }
    EXPECT_EQ(user.run({}).o, want.o) << limit;
    EXPECT_TRUE(fs::is_empty(directory_)) << limit;
    umount(directory_.c_str());
  }
}

// Home directories are mounted so on hardened machines.
TEST_F(CpuUserVariant, CacheMayLieWhereNothingIsExecuted) {
  if (!mount_memory(directory_, MS_NOEXEC, "mode=0700")) {
    GTEST_SKIP() << "cannot mount a file system without execution";
  }
  Case user = small();
  user.make(1);
  user.spec.variant = {"Plain", "struct Plain : VariantBase {};", {}};
  const Case::Answer first = user.run({});
  ASSERT_EQ(entries().size(), 1U);
  const fs::file_time_type written = fs::last_write_time(entries()[0]);
  EXPECT_EQ(user.run({}).o, first.o);
  EXPECT_EQ(fs::last_write_time(entries()[0]), written) << "compiled again";
  umount(directory_.c_str());
}

TEST_F(CpuUserVariant, CompilerThatWritesNoLibraryIsNamed) {
  const fs::path compiler = fs::path(directory_) / "no compiler";
  std::ofstream(compiler) << "#!/bin/sh\n"
                             "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && : >\"$2\"; shift; done\n";
  fs::permissions(compiler, fs::perms::owner_all);
  setenv("PLAIT_CXX", compiler.c_str(), 1);
  Case user = small();
  user.make(1);
  user.spec.variant = {"Plain", "struct Plain : VariantBase {};", {}};
  try {
    user.run({});
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), "compiler");
    EXPECT_EQ(error.value().find(compiler.string()), 0U) << error.value();
  }
  unsetenv("PLAIT_CXX");
}

// Starts together, one compiles, the others take what it stored.
TEST_F(CpuUserVariant, ProcessesCompileOneTextOnce) {
  const fs::path count = directory_ / "compilations";
  const fs::path compiler = directory_ / "counting";
  std::ofstream(compiler) << "#!/bin/sh\n[ \"$1\" = --version ] || echo >>" << count
                          << "\nexec c++ \"$@\"\n";
  fs::permissions(compiler, fs::perms::owner_all);
  setenv("PLAIT_CXX", compiler.c_str(), 1);
  AttentionSpec spec = small().spec;
  spec.variant = {"Plain", "struct Plain : VariantBase {};", {}};
  std::vector<pid_t> children;
  for (int process = 0; process < 8; ++process) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    int code = 1;
    try {
      code = cpu::UserVariant::load(spec) != nullptr ? 0 : 2;
    } catch (...) {
    }
    _exit(code);
  }
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  unsetenv("PLAIT_CXX");
  EXPECT_EQ(fs::file_size(count), 1U);
  EXPECT_EQ(entries().size(), 1U);
}

TEST_F(CpuUserVariant, DamagedEntryIsRebuilt) {
  Case user = small();
  user.make(1);
  user.spec.variant = {"Plain", "struct Plain : VariantBase {};", {}};
  const Case::Answer want = user.run({});
  ASSERT_EQ(entries().size(), 1U);
  const fs::path entry = entries()[0];
  const auto expect_rebuilt = [&] {
    EXPECT_EQ(user.run({}).o, want.o);
    ASSERT_EQ(entries().size(), 1U);
    EXPECT_TRUE(fs::is_regular_file(entry));
    EXPECT_LT(fs::file_size(entry), std::uintmax_t{1} << 30);
  };
  fs::resize_file(entry, fs::file_size(entry) / 2);
  expect_rebuilt();
  fs::resize_file(entry, std::uintmax_t{1} << 40);  // a hole
  expect_rebuilt();
  fs::remove(entry);
  ASSERT_EQ(mkfifo(entry.c_str(), 0600), 0);
  expect_rebuilt();
}

TEST_F(CpuUserVariant, LeavesOnlyTheEntryBehind) {
  // What a builder that was killed two hours ago left.
  const fs::path stale = directory_ / "build.tmp.killed";
  fs::create_directories(stale / "core");
  std::ofstream(stale / "core" / "portable.h") << "half a";
  fs::last_write_time(stale, fs::file_time_type::clock::now() - std::chrono::hours(2));
  const fs::path young = directory_ / "build.tmp.running";
  fs::create_directories(young);
  Case user = small();
  user.make(1);
  user.spec.variant = {"Plain", "struct Plain : VariantBase {};", {}};
  user.run({});
  EXPECT_FALSE(fs::exists(stale));
  EXPECT_TRUE(fs::exists(young));
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(directory_)) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, 1U);  // no lock either
}

TEST_F(CpuUserVariant, SameNameOtherSource) {
  Case user = small();
  user.make(1);
  user.spec.variant = {"Out",
                       R"(struct Out : VariantBase { static constexpr bool kHasOutput = true;
    template <class T> PLAIT_HD static T output(T x, const VectorSite&, const Params&) { return x * 2; } };)",
                       {}};
  const double twice = user.run({}).o[0];
  user.spec.variant.source = R"(struct Out : VariantBase { static constexpr bool kHasOutput = true;
    template <class T> PLAIT_HD static T output(T x, const VectorSite&, const Params&) { return x + 100; } };)";
  EXPECT_NEAR(user.run({}).o[0], twice / 2 + 100, 1e-4);
  EXPECT_EQ(entries().size(), 2U);
}

TEST_F(CpuUserVariant, WrongReductionIsRefused) {
  Case user = small();
  user.make(1);
  user.spec.reduction = Reduction::kSum;
  user.spec.variant = {"Plain", "struct Plain : VariantBase {};", {}};
  try {
    user.run({});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    EXPECT_EQ(error.field(), "reduction");
    EXPECT_EQ(error.value(), "sum");
  }
}

}  // namespace
}  // namespace plait::test
