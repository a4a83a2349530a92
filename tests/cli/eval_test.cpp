// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// plait eval and plait check from outside: exit codes, streams, files.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>

#include "oracle/safetensors.h"
#include "support/problems.h"
#include "support/temporary_directory.h"
#include "support/tool.h"

namespace plait {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

using test::lines_of;
using test::Ran;

class EvalTest : public testing::Test {
 protected:
  std::string path(const char* name) const { return directory_.path(name); }
  std::string write(const char* name, const std::string& content) const {
    std::ofstream(path(name)) << content;
    return path(name);
  }

  static Ran run(const std::string& arguments) {
    return test::Tool::shell("\"$PLAIT\" " + arguments).finish();
  }

  // Runs eval on a document that must be refused, and returns its message.
  std::string refusal(const std::string& text, const std::string& more = "") const {
    const std::string problem = write("refused.json", text);
    const Ran ran = run("eval '" + problem + "' --out '" + path("refused.out") + "' " + more);
    EXPECT_EQ(ran.code, 2) << text;
    EXPECT_EQ(ran.out, "");
    EXPECT_EQ(lines_of(ran.err), 1) << ran.err;
    EXPECT_FALSE(fs::exists(path("refused.out")));
    return ran.err;
  }

  test::TemporaryDirectory directory_;
};

TEST_F(EvalTest, ComputesAndReports) {
  json document = test::paged_example();
  document["q"]["fill"] = "zeros";
  document["kv"]["v_cache"]["fill"] = {{"index", 0}};
  document["return_lse"] = true;
  const std::string problem = write("p.json", document.dump());
  const Ran ran = run("eval '" + problem + "' --out '" + path("out") + "'");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  ASSERT_EQ(lines_of(ran.out), 1);
  const json report = json::parse(ran.out);
  EXPECT_EQ(report["family"], "cpu");
  EXPECT_EQ(report["device"], "cpu");
  for (const char* key :
       {"num_items", "num_partial_states", "num_workers", "largest_load", "mean_load"}) {
    EXPECT_TRUE(report["plan"][key].is_number()) << key;
  }
  EXPECT_GT(report["run_us"], 0);
  EXPECT_GT(report["plan_us"], 0);
  const oracle::Safetensors out = oracle::Safetensors::read(path("out"), "out");
  EXPECT_EQ(out.entries().at("o").dtype, "BF16");
  EXPECT_EQ(out.entries().at("o").shape, (std::vector<std::int64_t>{3, 2, 64}));
  const std::string_view lse = out.data(out.entries().at("lse"));
  float values[6];
  std::memcpy(values, lse.data(), sizeof(values));
  EXPECT_NEAR(values[0], std::log(5.0F), 1e-6F);
  EXPECT_EQ(values[2], -INFINITY);
  EXPECT_NEAR(values[5], std::log(3.0F), 1e-6F);
}

TEST_F(EvalTest, StateIsF32AndSumHasNoLse) {
  json document = test::paged_example();
  document["state"] = true;
  ASSERT_EQ(run("eval '" + write("p", document.dump()) + "' --out '" + path("a") + "'").code, 0);
  EXPECT_EQ(oracle::Safetensors::read(path("a"), "a").entries().at("o").dtype, "F32");
  EXPECT_EQ(oracle::Safetensors::read(path("a"), "a").entries().count("lse"), 1u);
  document["reduction"] = {{"sum", "sigmoid"}};
  ASSERT_EQ(run("eval '" + write("p", document.dump()) + "' --out '" + path("b") + "'").code, 0);
  EXPECT_EQ(oracle::Safetensors::read(path("b"), "b").entries().count("lse"), 0u);
}

TEST_F(EvalTest, BadInputIsOneLineAndNoFile) {
  EXPECT_NE(refusal("").find("problem: got an empty file"), std::string::npos);
  EXPECT_NE(refusal("{\"version\": 1").find("not JSON"), std::string::npos);
  json document = test::paged_example();
  document["kv"]["last_page_len"][2] = 9;
  EXPECT_NE(refusal(document.dump()).find("kv.last_page_len[2]: got 9"), std::string::npos);
  document = test::paged_example();
  document["windows"] = 3;
  EXPECT_NE(refusal(document.dump()).find("windows: got 3"), std::string::npos);
  document = test::paged_example();
  document["q"] = {{"name", "q"}};
  EXPECT_NE(refusal(document.dump()).find("q.name"), std::string::npos);
  EXPECT_NE(refusal(document.dump(), "--tensors '" + path("none") + "'").find("tensors"),
            std::string::npos);
  EXPECT_NE(
      refusal(document.dump(), "--tensors '" + write("junk", "12345678") + "'").find("tensors"),
      std::string::npos);
  const std::string good = test::paged_example().dump();
  oracle::HostTensor q = oracle::HostTensor::zeros(DType::kF32, {3}, "q");
  const oracle::NamedTensor named[] = {{"q", &q}};
  oracle::write_safetensors(path("unused"), named, "unused");
  EXPECT_NE(refusal(good, "--tensors '" + path("unused") + "'")
                .find("unused\", expected a file of which the problem names a tensor"),
            std::string::npos);
  EXPECT_NE(refusal(good, "--device tpu").find("--device"), std::string::npos);
  EXPECT_NE(refusal(good, "--family mma").find("family"), std::string::npos);
  EXPECT_NE(refusal(good, "--fast").find("--fast"), std::string::npos);
}

TEST_F(EvalTest, UnreadableAndUnwritablePaths) {
  const std::string good = write("good.json", test::paged_example().dump());
  for (const std::string& arguments :
       {"eval '" + path("missing") + "' --out '" + path("o") + "'",
        "eval '" + directory_.path() + "' --out '" + path("o") + "'",
        "eval '" + good + "' --out '" + directory_.path() + "'",
        "eval '" + good + "' --out '" + path("no/such/folder") + "'",
        std::string("eval --batch '") + path("missing") + "'", std::string("eval")}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << arguments;
    EXPECT_EQ(ran.out, "") << arguments;
    EXPECT_EQ(lines_of(ran.err), 1) << arguments << ran.err;
    EXPECT_FALSE(fs::exists(path("o"))) << arguments;
  }
}

TEST_F(EvalTest, BatchGoesOnAfterARefusal) {
  const std::string good = write("good.json", test::paged_example().dump());
  const std::string bad = write("bad.json", "{\"version\": 2}");
  const std::string batch =
      write("batch", good + " - " + path("1") + "\n" + bad + " - " + path("2") + "\n\nonly two\n" +
                         good + "   -\t" + path("4") + "\n");
  const Ran ran = run("eval --batch '" + batch + "'");
  EXPECT_EQ(ran.code, 2);
  ASSERT_EQ(lines_of(ran.out), 4) << ran.out;
  EXPECT_EQ(lines_of(ran.err), 2) << ran.err;
  std::istringstream lines(ran.out);
  std::vector<json> reports;
  for (std::string line; std::getline(lines, line);) reports.push_back(json::parse(line));
  EXPECT_EQ(reports[0]["family"], "cpu");
  EXPECT_EQ(reports[1]["error"]["field"], "version");
  EXPECT_EQ(reports[1]["error"]["value"], "2");
  EXPECT_TRUE(reports[1]["error"]["expected"].is_string());
  EXPECT_TRUE(reports[1]["error"]["message"].is_string());
  EXPECT_EQ(reports[2]["error"]["field"], "line");
  EXPECT_NE(ran.err.find("batch:4: line: got 2 words, expected three"), std::string::npos)
      << ran.err;
  EXPECT_EQ(reports[3]["family"], "cpu");
  EXPECT_TRUE(fs::exists(path("1")));
  EXPECT_FALSE(fs::exists(path("2")));
  EXPECT_TRUE(fs::exists(path("4")));
  EXPECT_EQ(run("eval --batch '" + write("ok", good + " - " + path("5") + "\n") + "'").code, 0);
}

TEST_F(EvalTest, BatchWritesNothingOverAFileThatItNames) {
  const std::string problem = test::paged_example().dump();
  const std::string first = write("first.json", problem);
  const std::string second = write("second.json", problem);
  fs::create_symlink("second.json", path("link"));
  const std::string batch = path("batch");
  const std::string content = first + " - " + batch + "\n" +         // the batch itself
                              first + " - " + path("link") + "\n" +  // a later line's problem
                              second + " - " + path("1") + "\n" +    //
                              first + " - " + path("./1") + "\n" +   // an earlier line's output
                              second + " - " + first + "\n" +        // an earlier line's problem
                              first + " - /dev/null\n" + second + " - /dev/null\n";
  write("batch", content);
  const Ran ran = run("eval --batch '" + batch + "'");
  EXPECT_EQ(ran.code, 2);
  ASSERT_EQ(lines_of(ran.out), 7) << ran.out;
  EXPECT_EQ(lines_of(ran.err), 4) << ran.err;
  std::istringstream lines(ran.out);
  const char* names[] = {"--batch", ":3: problem", nullptr, "out", ":1: problem", nullptr, nullptr};
  for (const char* name : names) {
    std::string line;
    std::getline(lines, line);
    const json report = json::parse(line);
    EXPECT_EQ(report.contains("error"), name != nullptr) << line;
    if (name == nullptr || !report.contains("error")) continue;
    EXPECT_EQ(report["error"]["field"], "out");
    const std::string expected = report["error"]["expected"];
    EXPECT_NE(expected.find("another file than that of "), std::string::npos) << line;
    EXPECT_NE(expected.find(name), std::string::npos) << line;
  }
  EXPECT_EQ(test::content_of(batch), content);
  EXPECT_EQ(test::content_of(first), problem);
  EXPECT_EQ(test::content_of(second), problem);
  EXPECT_TRUE(fs::exists(path("1")));
  // A bare name, before its file is there and after.
  write("names", first + " - new\n" + second + " - ./new\n");
  const Ran twice =
      test::Tool::shell("cd '" + path(".") + "' && \"$PLAIT\" eval --batch names").finish();
  EXPECT_EQ(twice.code, 2);
  EXPECT_EQ(lines_of(twice.err), 1) << twice.err;
}

TEST_F(EvalTest, CheckListsRunsAndRefuses) {
  Ran ran = run("check --list");
  EXPECT_EQ(ran.code, 0);
  EXPECT_NE(ran.out.find("random/cascade"), std::string::npos);
  EXPECT_NE(ran.out.find("field/01_decode_with_an_empty_request"), std::string::npos);
  ran = run("check --filter random/ --count 3 --seed 5");
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  EXPECT_NE(ran.out.find("3 passed, 0 failed"), std::string::npos) << ran.out;
  ran = run("check '" + test::paged_example().dump() + "'");
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  // Each kind of case has its line.
  for (const auto& [name, cases] : {std::pair{"variant/output", 8}, std::pair{"field/15", 1}}) {
    ran = run(std::string("check --verbose --filter ") + name);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(lines_of(ran.out), cases + 1) << ran.out;
    EXPECT_TRUE(ran.out.starts_with(std::string("ok       ") + name)) << ran.out;
  }
  EXPECT_EQ(run("check --filter nothing-of-this-name --count 1").code, 2);
  EXPECT_EQ(run("check '{\"version\": 1}'").code, 2);
  EXPECT_EQ(run("check --count -1").code, 2);
}

TEST_F(EvalTest, CheckRefusesOptionsThatItWouldIgnore) {
  for (const char* words : {"--tensors x", "'{}' --filter field", "'{}' --count 3", "'{}' --jobs 2",
                            "'{}' --time-limit 1", "'{}' --list"}) {
    const Ran ran = run(std::string("check ") + words);
    EXPECT_EQ(ran.code, 2) << words;
    EXPECT_FALSE(ran.err.empty()) << words;
    EXPECT_TRUE(ran.out.empty()) << words << ran.out;
  }
  EXPECT_EQ(run("bench plan --calibrate").code, 2);
  EXPECT_EQ(run("bench --calibrate --threads 2").code, 2);
}

}  // namespace
}  // namespace plait
