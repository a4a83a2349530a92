// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Standard output that is full, closed or read by nobody, and signals: whatever ends the tool, it
// says so on one line and leaves nothing behind.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/problems.h"
#include "support/tool.h"

namespace plait {
namespace {

namespace fs = std::filesystem;

class Streams : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(path("out"));
    std::ofstream(path("good.json")) << test::paged_example().dump();
    ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  }

  std::string path(const std::string& name) const { return folder_.path(name); }

  /// Whether `ready` comes true in time.
  static bool wait_until(const std::function<bool()>& ready) {
    for (int i = 0; i < 3000; ++i) {
      if (ready()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  /// Whether the tool has got as far as to handle signals.
  static bool handles_signals(const test::Tool& tool) {
    const std::string status =
        test::content_of("/proc/" + std::to_string(tool.process()) + "/status");
    const std::size_t at = status.find("SigCgt:");
    return at != std::string::npos &&
           (std::stoull(status.substr(at + 7), nullptr, 16) & (1ULL << (SIGINT - 1))) != 0;
  }

  test::TemporaryDirectory folder_;
};

/// A command of each verb that prints something and is done in no time.
const std::vector<std::string> kQuickCommands = {
    "--help",
    "--version",
    "info",
    "eval --help",
    "check --list",
    "explain --list",
    "explain",
    "explain --why",
    "aot --list",
    "bench --help",
    "replay --help",
    "replay --limit 1 --plan-only",
    "eval $F/good.json --out $F/out/o",
    "check --filter random/ --count 1",
};

TEST_F(Streams, OutputThatCannotBeWrittenIsOneLineAndExitCodeTwo) {
  for (const char* output : {">/dev/full", ">&-"}) {
    for (const std::string& words : kQuickCommands) {
      SCOPED_TRACE(words + " " + output);
      const test::Ran ran =
          test::Tool::shell("F='" + path("") + "'; \"$PLAIT\" " + words + " " + output).finish();
      EXPECT_EQ(ran.code, 2);
      EXPECT_EQ(test::lines_of(ran.err), 1) << ran.err;
      EXPECT_NE(ran.err.find("standard output: got "), std::string::npos) << ran.err;
    }
  }
}

TEST_F(Streams, AReaderThatGoesEndsTheToolQuietly) {
  // The reader is gone before the tool writes; `check --list` alone would fill no pipe.
  for (const std::string& words : kQuickCommands) {
    SCOPED_TRACE(words);
    const test::Ran ran = test::Tool::shell("F='" + path("") +
                                            "'; mkfifo $F/pipe; (exec <$F/pipe) & exec 3>$F/pipe; "
                                            "wait; \"$PLAIT\" " +
                                            words + " >&3; code=$?; rm $F/pipe; exit $code")
                              .finish();
    EXPECT_EQ(ran.code, 141);
    EXPECT_EQ(ran.err, "");
  }
}

TEST_F(Streams, AFileDoesNotTakeThePlaceOfAClosedStream) {
  const test::Ran ran = test::Tool::shell("\"$PLAIT\" eval '" + path("good.json") + "' --out '" +
                                          path("out/o") + "' <&- >&- 2>&-")
                            .finish();
  EXPECT_EQ(ran.code, 2);  // its line cannot be printed
  const std::string written = test::content_of(path("out/o"));
  EXPECT_EQ(written.find("plan_us"), std::string::npos);
  EXPECT_EQ(written.find("standard output"), std::string::npos);
}

TEST_F(Streams, SignalsEndEveryVerbInOrder) {
  // Each waits for a pipe that nobody writes to.
  const std::string fifo = path("fifo");
  const std::vector<std::vector<std::string>> commands = {
      {"eval", fifo, "--out", path("out/o")},
      {"eval", "--batch", fifo},
      {"eval", path("good.json"), "--tensors", fifo},
      {"check", fifo},
      {"explain", fifo, "--svg", path("out/svg"), "--html", path("out/html")},
      {"replay", "--trace", fifo, "--json", path("out/json"), "--html", path("out/html")},
      {"aot", "--list", "--set", fifo},
      {"bench", "--repetitions", "100000", "--csv", path("out/csv"), "plan"},
      {"check", "--count", "1000000", "--jobs", "2"},
  };
  for (const auto& [signal, what] :
       {std::pair(SIGINT, "interrupted"), {SIGTERM, "terminated"}, {SIGHUP, "hung up"}}) {
    for (const std::vector<std::string>& words : commands) {
      SCOPED_TRACE(testing::PrintToString(words) + what);
      test::Tool tool(words);
      ASSERT_TRUE(wait_until([&] { return handles_signals(tool); }));
      ::kill(tool.process(), signal);
      const test::Ran ran = tool.finish();
      EXPECT_EQ(ran.code, 128 + signal);
      EXPECT_EQ(ran.err, "plait " + words[0] + ": " + what + "\n");
      EXPECT_TRUE(fs::is_empty(path("out")));
    }
  }
}

TEST_F(Streams, AnInterruptLeavesNoTemporaryFolder) {
  // A variant is compiled in a folder of the cache; the first case that needs one makes it.
  const std::string cache = path("cache");
  fs::create_directory(cache);
  fs::permissions(cache, fs::perms::owner_all);
  const auto temporaries = [&] {
    int found = 0;
    for (const auto& entry : fs::directory_iterator(cache)) {
      if (entry.path().filename().string().find(".tmp.") != std::string::npos) ++found;
    }
    return found;
  };
  test::Tool tool({"check", "--filter", "variant/"}, {"PLAIT_CACHE_DIR=" + cache});
  ASSERT_TRUE(wait_until([&] { return temporaries() > 0; }));
  ::kill(tool.process(), SIGINT);
  const test::Ran ran = tool.finish();
  EXPECT_EQ(ran.code, 130);
  EXPECT_EQ(ran.err, "plait check: interrupted\n");
  EXPECT_EQ(temporaries(), 0);
}

TEST_F(Streams, NohupKeepsTheToolAlive) {
  const test::Ran ran = test::Tool::shell(
                            "trap '' HUP; \"$PLAIT\" check --count 100000 --time-limit 2 --filter "
                            "random/ & sleep 1; kill -HUP $!; wait $!")
                            .finish();
  EXPECT_EQ(ran.code, 0) << ran.err;
}

// Address space is what sanitizers need in terabytes.
TEST_F(Streams, SlowTooLittleMemoryIsOneLine) {
  const auto run_within = [](int kib, const std::string& words) {
    return test::Tool::shell("ulimit -v " + std::to_string(kib) + "; exec timeout 60 \"$PLAIT\" " +
                             words)
        .finish();
  };
  for (const std::string& words :
       {std::string("replay --geometry llama-3.1-70b --limit 4 --quiet"),
        std::string("bench decode --threads 1"),
        std::string("explain --batch decode-64 --device cpu --threads 1 --measured --why")}) {
    SCOPED_TRACE(words);
    const test::Ran ran = run_within(300000, words);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_EQ(test::lines_of(ran.err), 1) << ran.err;
  }
  // OpenBLAS, if it may, waits for memory before main and after it.
  EXPECT_EQ(run_within(80000, "info").code, 0);
}

}  // namespace
}  // namespace plait
