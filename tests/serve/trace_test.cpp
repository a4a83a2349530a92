// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/trace.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "plait/error.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace plait::serve {
namespace {

Trace mooncake(const std::string& text, std::int64_t limit = 0) {
  std::istringstream in(text);
  return read_mooncake(in, "t.jsonl", limit);
}

Trace azure(const std::string& text, std::int64_t limit = 0) {
  std::istringstream in(text);
  return read_azure(in, "t.csv", limit);
}

void expect_refused(const std::function<void()>& read, const std::string& field,
                    const std::string& value) {
  try {
    read();
    ADD_FAILURE() << "accepted; expected a refusal of " << field;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_EQ(error.field(), field);
    EXPECT_EQ(error.value(), value);
    EXPECT_FALSE(error.expected().empty());
  }
}

const std::string kLine =
    R"({"timestamp": 27, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]})";

TEST(TraceMooncake, ReadsTheFieldsOfEachLine) {
  const Trace trace =
      mooncake(kLine + "\n" +
               R"({"hash_ids": [46], "output_length": 1, "input_length": 512, "timestamp": 30})"
               "\r\n");
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[0].arrival_ns, 0);
  EXPECT_EQ(trace.requests[0].input_tokens, 600);
  EXPECT_EQ(trace.requests[0].output_tokens, 52);
  ASSERT_EQ(trace.requests[0].block_keys.size(), 2U);
  EXPECT_EQ(trace.requests[1].arrival_ns, 3'000'000);
  EXPECT_EQ(trace.requests[1].block_keys[0], trace.requests[0].block_keys[0]);
}

TEST(TraceMooncake, KeysNameTheWholePrefixNotTheBlockAlone) {
  const Trace trace =
      mooncake(R"({"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 7]})"
               "\n"
               R"({"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [2, 7]})");
  EXPECT_NE(trace.requests[0].block_keys[1], trace.requests[1].block_keys[1]);
}

TEST(TraceMooncake, LimitStopsBeforeLaterLines) {
  EXPECT_EQ(mooncake(kLine + "\nnot json\n", 1).requests.size(), 1U);
}

TEST(TraceMooncake, RefusesWhatIsNotCompletelyUnderstood) {
  const auto refused = [](const std::string& line, const std::string& field,
                          const std::string& value) {
    SCOPED_TRACE(line);
    expect_refused([&] { mooncake(kLine + "\n" + line); }, "t.jsonl:2: " + field, value);
  };
  const std::string rest = R"(, "output_length": 1, "hash_ids": [1]})";
  refused(R"({"timestamp": 30, "input_length": 0)" + rest, "input_length", "0");
  refused(R"({"timestamp": 30, "input_length": -5)" + rest, "input_length", "-5");
  refused(R"({"timestamp": 30, "input_length": 1.5)" + rest, "input_length", "1.5");
  refused(R"({"timestamp": 30, "input_length": "9")" + rest, "input_length", "\"9\"");
  refused(R"({"timestamp": 30, "input_length": null)" + rest, "input_length", "null");
  refused(R"({"timestamp": 30, "input_length": true)" + rest, "input_length", "true");
  refused(R"({"timestamp": 30, "input_length": [9])" + rest, "input_length", "an array");
  refused(R"({"timestamp": 30, "input_length": {})" + rest, "input_length", "an object");
  refused(R"({"timestamp": 30, "input_length": 99999999999999999999)" + rest, "input_length",
          "99999999999999999999");
  refused(R"({"timestamp": 30, "input_length": 16777217)" + rest, "input_length", "16777217");
  refused(R"({"timestamp": 30, "input_length": 513)" + rest, "hash_ids", "1 ids");
  refused(R"({"timestamp": 26, "input_length": 5)" + rest, "timestamp", "26");
  refused(R"({"timestamp": 9223372036854775807, "input_length": 5)" + rest, "timestamp",
          "9223372036854775807");
  refused(R"({"input_length": 5)" + rest, "timestamp", "nothing");
  refused(R"({"timestamp": 30, "input_length": 5, "input_length": 5)" + rest, "input_length",
          "the key twice");
  refused(R"({"timestamp": 30, "priority": 5, "input_length": 5)" + rest, "key", "\"priority\"");
  refused(R"({"timestamp": 30, "input_length": 5, "output_length": 1, "hash_ids": 1})", "hash_ids",
          "1");
  refused(R"({"timestamp": 30, "input_length": 5, "output_length": 1, "hash_ids": [[1]]})",
          "hash_ids", "an array");
  refused(R"({"timestamp": 30, "input_length": 5, "output_length": 1, "hash_ids": [-1]})",
          "hash_ids", "-1");
  refused("\n", "line", "\"\"");
  refused("[]", "line", "an array");
  refused("7", "line", "7");
  refused(kLine + kLine.substr(0, 1), "line", "\"" + kLine.substr(0, 64) + "...\"");
  refused(kLine.substr(0, 20), "line", "\"" + kLine.substr(0, 20) + "\"");
}

TEST(TraceMooncake, RefusesAnEmptyFileAndAnEndlessLine) {
  expect_refused([] { mooncake(""); }, "t.jsonl", "no request");
  expect_refused([] { mooncake(std::string(kMaxLineBytes + 1, '[')); }, "t.jsonl:1: line",
                 "more than 1048576 bytes");
}

const std::string kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens\n";

TEST(TraceAzure, ReadsHundredNanosecondTicksAndMissingLastNewline) {
  const Trace trace = azure(kHeader +
                            "2023-11-16 18:15:46.6805900,374,44\r\n"
                            "2023-11-17 00:00:00,1,1\n"
                            "2023-11-17 00:00:00.000001+00:00,14050,1000");
  ASSERT_EQ(trace.requests.size(), 3U);
  EXPECT_EQ(trace.requests[0].arrival_ns, 0);
  EXPECT_EQ(trace.requests[0].input_tokens, 374);
  EXPECT_EQ(trace.requests[0].output_tokens, 44);
  EXPECT_EQ(trace.requests[1].arrival_ns, 20653'319'410'000);
  EXPECT_EQ(trace.requests[2].arrival_ns, 20653'319'411'000);
  EXPECT_TRUE(trace.requests[0].block_keys.empty());
}

TEST(TraceAzure, CountsLeapDays) {
  const Trace trace = azure(kHeader + "2024-02-28 00:00:00,1,1\n2024-03-01 00:00:00,1,1\n");
  EXPECT_EQ(trace.requests[1].arrival_ns, std::int64_t{2} * 86400 * 1'000'000'000);
}

TEST(TraceAzure, RefusesWhatIsNotCompletelyUnderstood) {
  const auto refused = [](const std::string& line, const std::string& field,
                          const std::string& value) {
    SCOPED_TRACE(line);
    expect_refused([&] { azure(kHeader + "2023-11-16 18:15:46.5,374,44\n" + line); },
                   "t.csv:3: " + field, value);
  };
  refused("2023-11-16 18:15:47.1,374", "line", "\"2023-11-16 18:15:47.1,374\"");
  refused("2023-11-16 18:15:47.1,374,4,4", "line", "\"2023-11-16 18:15:47.1,374,4,4\"");
  refused("\n", "line", "\"\"");
  refused("2023-11-16 18:15:47.1,374,", "GeneratedTokens", "\"\"");
  refused("2023-11-16 18:15:47.1,0,4", "ContextTokens", "\"0\"");
  refused("2023-11-16 18:15:47.1,-3,4", "ContextTokens", "\"-3\"");
  refused("2023-11-16 18:15:47.1, 3,4", "ContextTokens", "\" 3\"");
  refused("2023-11-16 18:15:47.1,3e5,4", "ContextTokens", "\"3e5\"");
  refused("2023-11-16 18:15:47.1,3,99999999999999999999", "GeneratedTokens",
          "\"99999999999999999999\"");
  refused("2023-11-16 18:15:47.1,3,16777217", "GeneratedTokens", "\"16777217\"");
  for (const char* time :
       {"", "2023-11-16", "2023-11-16 18:15", "2023-11-16 18:15:60", "2023-11-16 24:00:00",
        "2023-02-29 00:00:00", "2023-13-01 00:00:00", "2023-11-16 18:15:47.",
        "2023-11-16 18:15:47.1234567890", "2023-11-16 18:15:47.1x", "0023-11-16 18:15:47",
        "2023-11-16 18:15:46.4"}) {
    refused(std::string(time) + ",3,4", "TIMESTAMP", "\"" + std::string(time) + "\"");
  }
}

TEST(TraceAzure, RefusesEmptyFilesAndOtherHeaders) {
  expect_refused([] { azure(""); }, "t.csv", "an empty file");
  expect_refused([] { azure(kHeader); }, "t.csv", "a header and no request");
  expect_refused([] { azure("a,b,c\n"); }, "t.csv:1: header", "\"a,b,c\"");
}

TEST(TraceFile, RefusesWhatCannotBeOpened) {
  const std::string missing = testing::TempDir() + "no-such-trace.jsonl";
  expect_refused([&] { read_trace_file(missing, TraceFormat::kAuto, 0); }, "trace",
                 "\"" + missing.substr(0, 64) + (missing.size() > 64 ? "..." : "") +
                     "\" (No such file or directory)");
  EXPECT_THROW(read_trace_file(testing::TempDir(), TraceFormat::kAuto, 0), Error);
}

TEST(TraceFile, SkipsAByteOrderMark) {
  const test::TemporaryDirectory folder;
  for (const auto& [name, text] :
       {std::pair{"t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n"},
        std::pair{
            "t.jsonl",
            "{\"timestamp\":0,\"input_length\":374,\"output_length\":44,\"hash_ids\":[1]}\n"}}) {
    const std::string path = folder.path(name);
    std::ofstream(path) << "\xef\xbb\xbf" << text;
    const Trace trace = read_trace_file(path, TraceFormat::kAuto, 0);
    ASSERT_EQ(trace.requests.size(), 1U) << name;
    EXPECT_EQ(trace.requests[0].input_tokens, 374) << name;
    std::ofstream(path) << "\xef\xbc\x91" << text;  // another character of three bytes
    EXPECT_THROW(read_trace_file(path, TraceFormat::kAuto, 0), Error) << name;
  }
}

TEST(TraceFile, ReadsThePublishedTracesWhole) {
  const std::filesystem::path folder = test::traces_dir();
  if (folder.empty()) GTEST_SKIP() << "PLAIT_TRACES does not name a folder with traces";
  const Trace conversation =
      read_trace_file(folder / "mooncake_conversation.jsonl", TraceFormat::kAuto, 0);
  EXPECT_EQ(conversation.requests.size(), 12031U);
  EXPECT_EQ(conversation.requests.back().arrival_ns, 3536999 * std::int64_t{1'000'000});
  const Trace azure_trace = read_trace_file(folder / "azure_conv_2023.csv", TraceFormat::kAuto, 0);
  EXPECT_EQ(azure_trace.requests.size(), 19366U);
  EXPECT_EQ(azure_trace.requests.back().output_tokens, 183);
}

TEST(TraceTime, ScaleAndRateKeepOrder) {
  Trace trace = azure(kHeader + "2023-11-16 00:00:00,1,1\n2023-11-16 00:00:10,1,1\n");
  scale_time(trace, 4.0);
  EXPECT_EQ(trace.requests[1].arrival_ns, 2'500'000'000);
  trace.requests.resize(1000);
  set_rate(trace, 50.0, 7);
  EXPECT_EQ(trace.requests[0].arrival_ns, 0);
  for (std::size_t i = 1; i < trace.requests.size(); ++i) {
    EXPECT_GE(trace.requests[i].arrival_ns, trace.requests[i - 1].arrival_ns);
  }
  // The sum of 999 exponential gaps of 20 ms is within 5 standard deviations of 20 s.
  EXPECT_NEAR(static_cast<double>(trace.requests.back().arrival_ns) / 1e9, 20.0, 3.2);
}

TEST(TraceTime, ArrivalsBeyondTheClockAreRefused) {
  Trace trace = azure(kHeader + "2023-11-16 00:00:00,1,1\n2023-11-16 00:00:10,1,1\n");
  EXPECT_THROW(scale_time(trace, 1e-12), Error);
  EXPECT_THROW(set_rate(trace, 1e-300, 7), Error);
}

}  // namespace
}  // namespace plait::serve
