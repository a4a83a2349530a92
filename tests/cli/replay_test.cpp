// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// `plait replay` from outside: exit codes, one clear line, no partial files.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "support/paths.h"
#include "support/temporary_directory.h"
#include "support/tool.h"

namespace {

namespace fs = std::filesystem;

using plait::test::content_of;
using plait::test::Tool;

class Replay : public testing::Test {
 protected:
  void SetUp() override { fs::create_directory(folder_ / "out"); }

  fs::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  static Tool start(std::vector<std::string> words) {
    words.insert(words.begin(), "replay");
    return Tool(std::move(words));
  }

  int finish(Tool& tool) {
    const plait::test::Ran ran = tool.finish();
    out_ = ran.out;
    err_ = ran.err;
    peak_kib_ = ran.usage.ru_maxrss;
    return ran.code;
  }

  int run(std::vector<std::string> words) {
    Tool tool = start(std::move(words));
    return finish(tool);
  }

  /// Exit code 2, one line on stderr that contains `text`, nothing on stdout, no file made.
  void expect_refused(const std::vector<std::string>& words, const std::string& text) {
    SCOPED_TRACE(testing::PrintToString(words));
    EXPECT_EQ(run(words), 2);
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
    EXPECT_NE(err_.find(text), std::string::npos) << err_;
    EXPECT_EQ(out_, "");
    EXPECT_TRUE(fs::is_empty(folder_ / "out"));
  }

  std::string out(const std::string& name) { return (folder_ / "out" / name).string(); }

  plait::test::TemporaryDirectory directory_;
  fs::path folder_ = directory_.path();
  std::string out_;
  std::string err_;
  long peak_kib_ = 0;
};

constexpr const char* kMooncakeLine =
    R"({"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]})";

TEST_F(Replay, ComputesASmallTraceAndWritesBothReports) {
  const fs::path trace = write("t.jsonl", std::string(kMooncakeLine) + "\n" + kMooncakeLine + "\n");
  ASSERT_EQ(run({"--trace", trace, "--quiet", "--json", out("r.json"), "--html", out("r.html")}), 0)
      << err_;
  EXPECT_EQ(err_, "");
  EXPECT_NE(out_.find("virtual clock   5000+25*tokens us a step"), std::string::npos);
  EXPECT_EQ(out_.find("TTFT"), std::string::npos);
  const auto json = nlohmann::json::parse(content_of(out("r.json")));
  EXPECT_EQ(json["totals"]["finished"], 2);
  EXPECT_GT(json["totals"]["attention_seconds"].get<double>(), 0.0);
  EXPECT_NE(content_of(out("r.html")).find("</html>"), std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "out"), {}), 2);
}

TEST_F(Replay, TheSameSeedFormsTheSameBatchesAndOutputs) {
  for (const char* name : {"a.json", "b.json"}) {
    ASSERT_EQ(run({"--limit", "6", "--seed", "3", "--quiet", "--json", out(name)}), 0) << err_;
  }
  const auto a = nlohmann::json::parse(content_of(out("a.json")));
  const auto b = nlohmann::json::parse(content_of(out("b.json")));
  EXPECT_EQ(a["totals"]["output_checksum"], b["totals"]["output_checksum"]);
  EXPECT_EQ(a["steps"]["kv_tokens"], b["steps"]["kv_tokens"]);
  EXPECT_EQ(a["steps"]["start_ms"], b["steps"]["start_ms"]);
}

// Composition, paging, splitting and rotation change how attention is computed, not what: the
// arms run over the same K and V and have to agree within the rounding of bf16.
TEST_F(Replay, EveryAblationComputesTheSameOutputs) {
  // Decoders and a late prefill over one prefix of two blocks. Two decode together: more rows than
  // their four would be tiles that compute on narrow vectors, where sharing a read does not pay.
  std::string trace =
      R"({"timestamp": 0, "input_length": 1030, "output_length": 12, "hash_ids": [0, 1, 2]})"
      "\n";
  for (int i = 3; i < 5; ++i) {
    trace += R"({"timestamp": 90, "input_length": 1100, "output_length": 8, "hash_ids": [0, 1, )" +
             std::to_string(i) + "]}\n";
  }
  trace += R"({"timestamp": 120, "input_length": 700, "output_length": 3, "hash_ids": [0, 9]})";
  ASSERT_EQ(run({"--trace", write("t.jsonl", trace), "--quiet", "--ablate", "all", "--json",
                 out("r.json")}),
            0)
      << err_;
  const auto json = nlohmann::json::parse(content_of(out("r.json")));
  ASSERT_EQ(json["ablations"].size(), 8U);
  for (const auto& ablation : json["ablations"]) {
    SCOPED_TRACE(ablation["feature"]);
    EXPECT_LE(ablation["output_difference"].get<double>(),
              ablation["feature"] == "rope" ? 0.06 : 0.02);
    EXPECT_EQ(ablation["attention_us"]["pairs"], json["totals"]["steps"]);
  }
  EXPECT_GT(json["totals"]["composed_fraction"].get<double>(), 0.0);
}

TEST_F(Replay, WindowLayersAndEveryKvTypeRun) {
  const fs::path trace = write("t.jsonl", std::string(kMooncakeLine) + "\n");
  for (const char* dtype : {"f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"}) {
    EXPECT_EQ(run({"--trace", trace, "--quiet", "--kv-dtype", dtype, "--geometry",
                   "layers=3,q=4,kv=2,dim=32,window=100,window-layers=2,cap=30", "--rope", "fused",
                   "--json", out("r.json")}),
              0)
        << dtype << err_;
  }
  const auto json = nlohmann::json::parse(content_of(out("r.json")));
  EXPECT_EQ(json["break_even"]["layers"], 3);
}

TEST_F(Replay, ASmallPoolPreemptsAndStillFinishes) {
  ASSERT_EQ(run({"--workload", "uniform:40:60", "--limit", "8", "--rate", "1000", "--pool-tokens",
                 "640", "--quiet", "--json", out("r.json")}),
            0)
      << err_;
  const auto json = nlohmann::json::parse(content_of(out("r.json")));
  EXPECT_EQ(json["totals"]["finished"], 8);
  EXPECT_GT(json["totals"]["preemptions"], 0);
}

TEST_F(Replay, TtftNeedsTheModelledRest) {
  ASSERT_EQ(run({"--limit", "3", "--quiet", "--other-us", "1000+2*tokens"}), 0) << err_;
  EXPECT_NE(out_.find("TTFT (modelled)"), std::string::npos);
  EXPECT_NE(out_.find("attention share of a step"), std::string::npos);
}

TEST_F(Replay, RefusesBadTraces) {
  expect_refused({"--trace", folder_ / "missing"}, "missing");
  expect_refused({"--trace", folder_}, "a directory");
  expect_refused({"--trace", write("empty", "")}, "empty");
  expect_refused(
      {"--trace", write("cut.jsonl", std::string(kMooncakeLine) + "\n{\"timestamp\": 3")},
      "cut.jsonl:2: line");
  expect_refused({"--trace", write("zero.jsonl", R"({"timestamp": 0, "input_length": 0})")},
                 "zero.jsonl:1: input_length: got 0, expected");
  expect_refused({"--trace", write("bad.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n")},
                 "bad.csv:2: TIMESTAMP");
  expect_refused({"--trace", write("nul.jsonl", kMooncakeLine + std::string(1, '\0'))},
                 "without a NUL byte");
  expect_refused({"--trace", write("binary", std::string("\0\1\2\xff", 4))}, "binary:1: header");
}

TEST_F(Replay, RefusesBadOptions) {
  expect_refused({"--no-such-option"}, "no-such-option");
  expect_refused({"--geometry", "llama-9"}, "llama-3.1-8b");
  expect_refused({"--workload", "uniform:9:5"}, "uniform:a:b");
  expect_refused({"--clock-us", "fast"}, "clock-us");
  expect_refused({"--ablate", "magic"}, "ablate");
  expect_refused({"--plan-only", "--ablate", "rope"}, "ablate");
  expect_refused({"--plan-only", "--other-us", "1"}, "other-us");
  expect_refused({"--plan-only", "--rope", "fused"}, "rope");
  expect_refused({"--rate", "1e-300"}, "rate");
  expect_refused({"--no-compose", "--ablate", "composition"}, "composition");
  expect_refused({"--rate", "2", "--time-scale", "2"}, "time-scale");
  expect_refused({"--rate", "-1"}, "rate");
  expect_refused({"--time-scale", "nan"}, "time-scale");
  expect_refused({"--limit", "-4"}, "limit");
  expect_refused({"--kv-dtype", "i32"}, "kv-dtype");
  expect_refused({"--device", "tpu"}, "device");
  expect_refused({"--page-size", "48"}, "page_size");
  expect_refused({"--page-size", "0"}, "--page-size");
  expect_refused({"--token-budget", "0"}, "--token-budget");
  expect_refused({"--pool-tokens", "100"}, "pool_tokens");
  expect_refused({"--threads", "100000"}, "threads");
  expect_refused({"--workload", "skewed", "--trace", "x"}, "--workload");
}

TEST_F(Replay, RefusesUnwritableOutputsBeforeItStarts) {
  expect_refused({"--json", "/no/such/folder/r.json"}, "json");
  expect_refused({"--html", (folder_ / "out").string()}, "html");
  expect_refused({"--json", out("x"), "--html", out("x")}, "html");
}

TEST_F(Replay, AnInterruptEndsWith130AndNoFile) {
  Tool tool = start({"--workload", "skewed", "--limit", "200000", "--geometry", "llama-3.1-8b",
                     "--plan-only", "--json", out("r.json"), "--html", out("r.html")});
  // Progress shows after a second; the whole would take ten and more.
  for (int i = 0; i < 6000 && tool.err().find("step") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(tool.process(), SIGINT);
  EXPECT_EQ(finish(tool), 130);
  EXPECT_EQ(out_, "");
  EXPECT_NE(err_.find("interrupted"), std::string::npos) << err_;
  EXPECT_TRUE(fs::is_empty(folder_ / "out"));
}

class ReplayTrace : public Replay, public testing::WithParamInterface<const char*> {};

// The whole published traces through batching and planning. The time is a benchmark's business;
// memory is not.
TEST_P(ReplayTrace, SlowPlansTheWholeTraceWithinTwoGibibytes) {
  if (plait::test::traces_dir().empty()) {
    GTEST_SKIP() << "PLAIT_TRACES does not name a folder with traces";
  }
  ASSERT_EQ(run({"--plan-only", "--geometry", "llama-3.1-8b", "--quiet", "--json", out("r.json"),
                 "--trace", plait::test::traces_dir() / GetParam()}),
            0)
      << err_;
  const auto json = nlohmann::json::parse(content_of(out("r.json")));
  EXPECT_EQ(json["totals"]["finished"], json["totals"]["requests"]);
  EXPECT_LT(peak_kib_, 2 * 1024 * 1024);  // KiB
}

INSTANTIATE_TEST_SUITE_P(Published, ReplayTrace,
                         testing::Values("mooncake_conversation.jsonl", "azure_conv_2023.csv"));

}  // namespace
