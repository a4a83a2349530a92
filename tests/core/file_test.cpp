// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "core/leftover.h"
#include "core/text.h"
#include "plait/error.h"
#include "support/temporary_directory.h"

namespace plait {
namespace {

namespace fs = std::filesystem;

/// The field of an Error{kIo}; "accepted" if there is none.
std::string refused(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    return error.field();
  }
  return "accepted";
}

constexpr std::string_view kPieces[] = {"one", "two"};

TEST(File, WhatCannotBeReadIsRefused) {
  const test::TemporaryDirectory folder;
  EXPECT_EQ(refused([&] { read_file(folder.path("none"), "problem", 10); }), "problem");
  EXPECT_EQ(refused([&] { read_file(folder.path(), "problem", 10); }), "problem");
  EXPECT_EQ(refused([&] { read_file("/dev/zero", "problem", 1 << 20); }), "problem");
  write_file_atomic(folder.path("new"), kPieces, "out");
  EXPECT_EQ(read_file(folder.path("new"), "out", 10), "onetwo");
  EXPECT_EQ(refused([&] { read_file(folder.path("new"), "out", 5); }), "out");
}

TEST(File, WritesTheWholeFileAndLeavesNothingElse) {
  const test::TemporaryDirectory folder;
  const std::string path = folder.path("report.json");
  require_writable(path, "json");
  EXPECT_TRUE(fs::is_empty(folder.path()));
  const std::string_view other = "other";
  write_file_atomic(path, {&other, 1}, "json");
  write_file_atomic(path, kPieces, "json");
  EXPECT_EQ(read_file(path, "json", 100), "onetwo");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0600U, 0600U);
}

TEST(File, TheCheckRefusesWhatTheWriteRefuses) {
  const test::TemporaryDirectory folder;
  for (const std::string& path :
       {std::string(), folder.path(), folder.path("no/such"), std::string("/proc/report.json")}) {
    EXPECT_EQ(refused([&] { require_writable(path, "json"); }), "json") << path;
    EXPECT_EQ(refused([&] { write_file_atomic(path, kPieces, "json"); }), "json") << path;
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Leftover, GoesWithItsObject) {
  const test::TemporaryDirectory folder;
  {
    const Leftover leftover(folder.path("made"));
    fs::create_directories(folder.path("made/deeper"));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// In a process of its own: nothing can be made or destroyed afterwards.
TEST(Leftover, GoesBeforeItsProcessEnds) {
  const test::TemporaryDirectory folder;
  EXPECT_EXIT(
      {
        const Leftover file(folder.path("file"));
        const Leftover directory(folder.path("directory"));
        write_file_atomic(folder.path("file"), kPieces, "out");
        fs::create_directories(folder.path("directory/deeper"));
        remove_leftovers();
        std::_Exit(fs::exists(file.path()) || fs::exists(directory.path()) ? 8 : 7);
      },
      testing::ExitedWithCode(7), "");
}

TEST(Text, PrintableKeepsUtf8AndNothingElse) {
  EXPECT_EQ(printable("plain text"), "plain text");
  EXPECT_EQ(printable("k\xc3\xa4se \xe2\x82\xac \xf0\x9f\x98\x80"),
            "k\xc3\xa4se \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(printable("a\nb\tc\rd"), "a b c d");
  EXPECT_EQ(printable("\xef\xbb\xbf{}"), "???{}");
  EXPECT_EQ(printable("\x1b[31m\x7f"), "?[31m?");
  EXPECT_EQ(printable(std::string_view("\0x", 2)), "?x");
  // Cut off, alone, overlong, a surrogate, beyond the last character, a control character.
  for (const std::string_view bad : {"\xc3", "\x80", "\xff", "\xc0\xaf", "\xe0\x80\xaf",
                                     "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc2\x9b", "\xe2\x82"}) {
    EXPECT_EQ(printable(bad), std::string(bad.size(), '?'));
  }
}

TEST(Text, QuotesAreCutBetweenCharacters) {
  EXPECT_EQ(quote_text("short"), "\"short\"");
  EXPECT_EQ(quote_text(std::string(64, 'x')), "\"" + std::string(64, 'x') + "\"");
  EXPECT_EQ(quote_text(std::string(65, 'x')), "\"" + std::string(64, 'x') + "...\"");
  EXPECT_EQ(quote_text(std::string(63, 'x') + "\xc3\xa4" + "y"),
            "\"" + std::string(63, 'x') + "...\"");
}

}  // namespace
}  // namespace plait
