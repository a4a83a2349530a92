// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Careless and hostile command lines: exit code 2, one line that names what is wrong, nothing on
// standard output, no file.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/problems.h"
#include "support/tool.h"

namespace plait {
namespace {

namespace fs = std::filesystem;

/// What is refused. In the words, $F is a folder with the files that the fixture makes and $O an
/// empty one, which has to stay empty.
struct Refused {
  std::vector<std::string> words;
  std::string says;
};

class CommandLine : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(path("out"));
    write("good.json", test::paged_example().dump());
    write("other.json", test::paged_example().dump());
    write("empty", "");
    write("blank", "\n  \n");
    write("binary", std::string("\x7f\x45LF\x02\x01\x00\xff\xfe\x1b[31m\n\x80", 17));
    write("key", "# no key\n");
    write("trace.jsonl",
          R"({"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]})");
  }

  std::string path(const std::string& name) const { return folder_.path(name); }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
  }

  std::vector<std::string> filled(std::vector<std::string> words) const {
    for (std::string& word : words) {
      for (const auto& [mark, value] : {std::pair("$F", path("")), std::pair("$O", path("out"))}) {
        for (std::size_t at = 0; (at = word.find(mark)) != std::string::npos;) {
          word.replace(at, 2, value);
        }
      }
    }
    return words;
  }

  void expect_refused(const std::vector<Refused>& table) const {
    for (const Refused& refused : table) {
      SCOPED_TRACE(testing::PrintToString(refused.words));
      const test::Ran ran = test::run_tool(filled(refused.words));
      EXPECT_EQ(ran.code, 2);
      EXPECT_EQ(test::lines_of(ran.err), 1) << ran.err;
      EXPECT_NE(ran.err.find(refused.says), std::string::npos) << ran.err;
      EXPECT_NE(ran.err.find(", expected "), std::string::npos) << ran.err;
      for (const char c : ran.err) {
        const auto byte = static_cast<unsigned char>(c);
        EXPECT_TRUE(c == '\n' || byte >= 0x20) << "control character " << +byte;
      }
      EXPECT_EQ(ran.out, "");
      EXPECT_TRUE(fs::is_empty(path("out")));
    }
  }

  test::TemporaryDirectory folder_;
};

TEST_F(CommandLine, EmptyValuesAreRefused) {
  expect_refused({
      {{"eval", "$F/good.json", "--out", ""}, "--out: got \"\""},
      {{"eval", "$F/good.json", "--out="}, "--out"},
      {{"eval", "$F/good.json", "--tensors", ""}, "--tensors: got \"\""},
      {{"eval", "--batch", ""}, "--batch: got \"\""},
      {{"eval", ""}, "problem: got \"\""},
      {{"check", ""}, "problems: got \"\""},
      {{"check", "--filter", ""}, "--filter: got \"\""},
      {{"check", "--count", ""}, "--count: got \"\""},
      {{"bench", "--csv", "", "plan"}, "--csv: got \"\""},
      {{"bench", ""}, "groups: got \"\""},
      {{"explain", "--html", ""}, "--html: got \"\""},
      {{"explain", "--svg", ""}, "--svg: got \"\""},
      {{"explain", "--batch", ""}, "--batch: got \"\""},
      {{"explain", ""}, "problem: got \"\""},
      {{"replay", "--limit", ""}, "--limit: got \"\""},
      {{"replay", "--trace", ""}, "--trace: got \"\""},
      {{"replay", "--json", ""}, "--json: got \"\""},
      {{"replay", "--ablate", ""}, "ablate: got \"\""},
      {{"aot", "--list", "--set", ""}, "--set: got \"\""},
      {{"info", ""}, "command line: got \"\""},
      {{""}, "verb: got \"\""},
  });
}

TEST_F(CommandLine, NumbersAreDecimalFiniteAndInRange) {
  for (const char* number :
       {"-1", "12345678901234567890123", "0x10", "1e3", " 3", "3 ", "3x", "abc", "nan", "1.5"}) {
    expect_refused({
        {{"replay", "--seed", number}, "--seed: got \"" + std::string(number)},
        {{"check", "--seed", number}, "--seed: got \"" + std::string(number)},
        {{"check", "--count", number}, "an integer from 0 to 100000000"},
        {{"bench", "--repetitions", number}, "an integer from 1 to 100000"},
        {{"explain", "--workers", number}, "an integer from 1 to 1048576"},
        {{"eval", "$F/good.json", "--threads", number}, "an integer from 0 to 1024"},
        {{"aot", "--jobs", number}, "an integer from 1 to 1024"},
    });
  }
  for (const char* number : {"nan", "inf", "-inf", "1e400", "-1", "0x1p3", "1,5", "abc", " 1"}) {
    expect_refused({
        {{"check", "--time-limit", number}, "--time-limit: got \"" + std::string(number)},
        {{"replay", "--rate", number}, "--rate: got \"" + std::string(number)},
        {{"replay", "--time-scale", number}, "--time-scale: got \"" + std::string(number)},
    });
  }
  expect_refused({
      {{"check", "--time-limit", "1e-9"}, "--time-limit"},
      {{"check", "--filter", "random/", "--count", "0"}, "--count"},
      {{"replay", "--rate", "0"}, "--rate"},
      {{"replay", "--limit", "1048577"}, "an integer from 0 to 1048576"},
      {{"replay", "--pool-tokens", "0"}, "--pool-tokens"},
      {{"replay", "--threads", "1025"}, "--threads"},
      {{"replay", "--max-requests", "1048577"}, "--max-requests"},
      {{"replay", "--token-budget", "1048577"}, "--token-budget"},
      {{"replay", "--page-size", "65537"}, "--page-size"},
      {{"bench", "--threads", "1025"}, "--threads"},
  });
}

TEST_F(CommandLine, OptionsThatWouldDoNothingAreRefused) {
  std::vector<Refused> table;
  const auto beside_list = [&](const std::string& verb, std::vector<std::string> words) {
    const std::string name = words[0];
    words.insert(words.begin(), {verb, "--list"});
    table.push_back({words, name + ": got this option, expected --list without it"});
  };
  beside_list("aot", {"--arch", "sm_80"});
  beside_list("aot", {"--out", "$O/cache"});
  beside_list("aot", {"--check"});
  beside_list("aot", {"--jobs", "2"});
  beside_list("aot", {"--write-budgets", "$O"});
  for (const char* option : {"--why", "--measured"}) beside_list("explain", {option});
  for (const char* option : {"--batch", "--svg", "--html"}) beside_list("explain", {option, "x"});
  beside_list("explain", {"--workers", "3"});
  beside_list("explain", {"--device", "cpu"});
  beside_list("check", {"--verbose"});
  beside_list("check", {"--count", "3"});
  beside_list("check", {"--seed", "3"});
  beside_list("check", {"--device", "cpu"});
  expect_refused(table);
  expect_refused({
      {{"check", "--list", "--filter", "zzz"}, "--filter: got \"zzz\""},
      {{"check", "--filter", "field/", "--count", "5"}, "--count"},
      {{"check", "--filter", "variant/", "--jobs", "2"}, "--jobs"},
      {{"check", "--filter", "field/", "--seed", "2"}, "--seed"},
      {{"eval", "$F/good.json", "--device", "cuda", "--threads", "2"}, "--threads"},
      {{"check", "--device", "cuda", "--threads", "2"}, "--threads"},
      {{"explain", "--device", "cuda", "--threads", "2"}, "--threads"},
      {{"replay", "--device", "cuda", "--threads", "2"}, "--threads"},
      {{"explain", "--threads", "2"}, "--threads"},
      {{"explain", "--family", "auto"}, "--family"},
      {{"bench", "plan", "--pages", "shuffled"}, "--pages"},
      {{"bench", "plan", "--threads", "1"}, "--threads"},
      {{"bench", "--filter", "plan 256", "--threads", "1"}, "--threads"},
      {{"bench", "--filter", "plan 256", "--pages", "sequential"}, "--pages"},
      {{"bench", "decode", "--filter", "prefill", "--threads", "1"}, "--threads"},
      {{"bench", "--family", "auto", "plan"}, "--family"},
      {{"bench", "decode", "--filter", "zzz"}, "--filter"},
      {{"replay", "--no-prefix-cache", "--ablate", "composition"}, "composition"},
      {{"replay", "--no-prefix-cache", "--no-compose"}, "--no-compose"},
      {{"replay", "--trace", "$F/trace.jsonl", "--plan-only", "--seed", "3"}, "--seed"},
      {{"replay", "--trace-format", "azure"}, "--trace"},
      {{"replay", "--rate", "2", "--time-scale", "1"}, "--time-scale: got this option"},
      {{"replay", "--plan-only", "--device", "cpu"}, "--device: got this option"},
      {{"replay", "--plan-only", "--device", "cuda"}, "--device: got this option"},
      {{"replay", "--plan-only", "--family", "auto"}, "--family: got this option"},
      {{"replay", "--plan-only", "--threads", "1"}, "--threads: got this option"},
      {{"replay", "--plan-only", "--measure"}, "--measure: got this option"},
      {{"replay", "--plan-only", "--run-graphs", "0"}, "--run-graphs: got this option"},
      {{"replay", "--device", "cpu", "--run-graphs", "0"}, "--run-graphs: got this option"},
      {{"replay", "--plan-only", "--rope", "none"}, "--rope: got this option"},
      {{"explain", "--device", "cpu", "--measured"}, "--measured: got this option"},
      {{"bench", "--calibrate", "--threads", "0"}, "--threads: got \"0\""},
      {{"bench", "--device", "cuda", "variants", "--pages", "shuffled"}, "--pages"},
      {{"eval", "$F/good.json", "--batch", "$F/blank"}, "--batch"},
      {{"explain", "--tensors", "$F/blank"}, "problem beside it"},
      {{"explain", "$F/good.json", "--batch", "skewed"}, "--batch"},
      {{"aot", "--check", "--write-budgets", "$O"}, "--check"},
      {{"--version", "x"}, "after --version"},
      {{"--help", "x"}, "after --help"},
      {{"help", "eval"}, "after help"},
  });
}

// The keys of a geometry are options as well.
TEST_F(CommandLine, KeysOfAGeometryThatWouldDoNothingAreRefused) {
  const std::string shape = "layers=2,q=2,kv=1,dim=64";
  const std::string window = shape + ",window=32";
  expect_refused({
      {{"replay", "--plan-only", "--geometry", shape + ",cap=30"}, "geometry.cap: got 30"},
      {{"replay", "--plan-only", "--geometry", shape + ",cap=0"}, "geometry.cap: got 0"},
      {{"replay", "--plan-only", "--geometry", shape + ",theta=5e5"}, "geometry.theta: got 500000"},
      {{"replay", "--rope", "none", "--geometry", shape + ",theta=10000"}, "geometry.theta"},
      {{"replay", "--geometry", window, "--no-compose"}, "no-compose"},
      {{"replay", "--geometry", window, "--ablate", "tile,composition"}, "composition"},
      {{"replay", "--geometry", "mistral-7b-v0.1", "--no-compose"}, "layer without window"},
  });
  // What is read is accepted, and `all` is what can differ.
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--plan-only", "--geometry", shape},
           {"--plan-only", "--geometry", "gemma-2-9b"},
           {"--rope", "none", "--geometry", shape + ",cap=30"},
           {"--geometry", shape + ",theta=5e5,cap=0"},
           {"--geometry", window + ",window-layers=1", "--no-compose"},
           {"--geometry", window, "--rope", "none", "--ablate", "all"},
       }) {
    std::vector<std::string> line = {"replay",  "--limit",    "1",
                                     "--quiet", "--workload", "uniform:8:8"};
    line.insert(line.end(), words.begin(), words.end());
    const test::Ran ran = test::run_tool(line);
    EXPECT_EQ(ran.code, 0) << testing::PrintToString(line) << ran.err;
    EXPECT_EQ(ran.out.find("read once per request"), std::string::npos) << ran.out;
  }
}

TEST_F(CommandLine, WordsThatDoNotFitAreNamed) {
  expect_refused({
      {{"--bogus"}, "\"--bogus\""},
      {{"evil"}, "\"evil\""},
      {{"eval", "--bogus"}, "\"--bogus\""},
      {{"eval", "a", "b"}, "\"b\""},
      {{"eval", "--out"}, "--out: got no value"},
      {{"eval", "$F/good.json", "--out", "--device", "cpu"}, "\"--device\""},
      {{"eval", "$F/good.json", "--device", "cpu", "--device", "cpu"}, "--device: got 2 values"},
      {{"eval", "$F/good.json", "--out", "$O/a", "--out", "$O/b"}, "--out: got 2 values"},
      {{"check", "--list=5"}, "--list: got a value"},
      {{"check", "--list=false"}, "--list: got a value"},
      {{"explain", "--policy", "nonsense"}, "throughput, batch_invariant, fixed_chunk or unsplit"},
      {{"bench", "nonsense"}, "groups: got \"nonsense\""},
      {{"replay", "--rope", "maybe"}, "separate, fused or none"},
      {{"eval", "$F/good.json", "--family", "tensor"}, "auto, cpu, mma or hopper"},
      {{"eval", "$F/good.json", "--device", "cuda:"}, "cpu, cuda or cuda:N"},
      {{"eval", "$F/good.json", "--device", "cuda:-1"}, "cpu, cuda or cuda:N"},
      {{"bench", "--device", "cuda:x"}, "cpu, cuda or cuda:N"},
      {{"eval", "a\x1b[31m\nb\xff"}, "\"a?[31m b?\""},
      {{"info", "\xff\xfe"}, "\"??\""},
  });
}

TEST_F(CommandLine, FilesThatDoNotFitAreNamed) {
  expect_refused({
      {{"eval", "--batch", "$F/empty"}, "--batch"},
      {{"eval", "--batch", "$F/blank"}, "--batch"},
      {{"eval", "$F/empty"}, "problem"},
      {{"eval", "$F/binary"}, "a NUL byte"},
      {{"eval", "$F/good.json", "--tensors", "$F"}, "a directory"},
      {{"aot", "--list", "--set", "$F/key"}, "at least one kernel key"},
      {{"aot", "--list", "--set", "$F/empty"}, "at least one kernel key"},
      {{"aot", "--list", "--set", "$F"}, "a directory"},
      {{"aot", "--list", "--set", "$F/binary"}, "binary:1"},
      {{"replay", "--trace", "$F/binary"}, "binary:1"},
      {{"replay", "--trace", "$F"}, "a directory"},
      {{"explain", "$F/binary"}, "a NUL byte"},
      {{"check", "$F"}, "a directory"},
  });
}

TEST_F(CommandLine, OutputsAreCheckedBeforeTheWork) {
  // The work of these would take from seconds to hours.
  const std::vector<std::string> replay = {"replay", "--workload", "skewed", "--limit", "200000"};
  std::vector<Refused> table;
  for (const std::string& file : {path("out"), std::string("/no/such/folder/file"),
                                  std::string("/proc/file"), path("good.json/file")}) {
    for (const char* option : {"--json", "--html"}) {
      std::vector<std::string> words = replay;
      words.insert(words.end(), {option, file});
      table.push_back({words, std::string(option) + ": got "});
    }
    table.push_back({{"bench", "--csv", file}, "--csv: got "});
    table.push_back({{"explain", "--svg", file}, "--svg: got "});
    table.push_back({{"explain", "--html", file}, "--html: got "});
    table.push_back({{"eval", "$F/good.json", "--out", file}, "out: got "});
  }
  expect_refused(table);
  expect_refused({
      {{"check", "--filter", "zzz"}, "--filter: got \"zzz\""},
      {{"explain", "--svg", "$O/a", "--html", "$O/a"}, "another file than that of --svg"},
      {{"explain", "--svg", "$O/a", "--html", "$O/../out/a"}, "another file than that of --svg"},
      {{"explain", "$F/good.json", "--svg", "$F/good.json"}, "another file than that of problem"},
      {{"replay", "--json", "$O/a", "--html", "$O/a"}, "another file than that of --json"},
      {{"replay", "--trace", "$F/trace.jsonl", "--json", "$F/trace.jsonl"}, "--trace"},
      {{"eval", "$F/good.json", "--out", "$F/good.json"}, "another file than that of problem"},
  });
  EXPECT_EQ(test::content_of(path("good.json")), test::content_of(path("other.json")));
}

TEST_F(CommandLine, DevicesPipesLinksAndModesOfOutputsStay) {
  const std::string fifo = path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  test::Ran ran = test::Tool::shell("cat '" + fifo + "' & \"$PLAIT\" explain --svg '" + fifo +
                                    "' >/dev/null; wait")
                      .finish();
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("</svg>"), std::string::npos);
  EXPECT_TRUE(fs::is_fifo(fifo));

  write("private", "old");
  fs::permissions(path("private"), fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("private", path("link"));
  ran = test::run_tool({"explain", "--svg", path("link")});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_NE(test::content_of(path("private")).find("</svg>"), std::string::npos);
  EXPECT_EQ(fs::status(path("private")).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);

  fs::create_symlink("nothing", path("dangling"));
  expect_refused({{{"explain", "--svg", "$F/dangling"}, "a link to nothing"}});
  ran = test::Tool::shell("\"$PLAIT\" explain --svg '" + path("self") + "' >'" + path("self") + "'")
            .finish();
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find("where this program prints"), std::string::npos) << ran.err;
  // As long as a name may be.
  const std::string longest = path("out") + "/" + std::string(255, 'n');
  EXPECT_EQ(test::run_tool({"explain", "--svg", longest}).code, 0);
  EXPECT_TRUE(fs::exists(longest));
}

}  // namespace
}  // namespace plait
