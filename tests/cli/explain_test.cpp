// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// plait explain from outside: the parts of a step, the drawing, refusals.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "support/paths.h"
#include "support/temporary_directory.h"

namespace plait {
namespace {

namespace fs = std::filesystem;

struct Ran {
  int code = -1;
  std::string out;  // both streams
};

Ran explain(const std::string& words) {
  const std::string command = test::plait_binary().string() + " explain " + words + " 2>&1";
  Ran ran;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return ran;
  char buffer[4096];
  while (std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) ran.out.append(buffer, n);
  const int status = pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

/// Sum of the percentages of all parts, in tenths.
int tenths_of_parts(const std::string& text) {
  const std::regex part(R"((floor|imbalance|merge|launch|planning) .* (\d+)\.(\d) %)");
  int sum = 0;
  int parts = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (!std::regex_search(line, found, part)) continue;
    sum += 10 * std::stoi(found[2]) + std::stoi(found[3]);
    ++parts;
  }
  return parts == 5 ? sum : -1;
}

TEST(ExplainCli, WhyAddsUpToOneHundredPercent) {
  for (const char* batch : {"decode-64", "skewed", "shared-prefix", "window"}) {
    const Ran ran = explain(std::string("--why --batch ") + batch);
    EXPECT_EQ(ran.code, 0) << ran.out;
    EXPECT_EQ(tenths_of_parts(ran.out), 1000) << ran.out;
    EXPECT_NE(ran.out.find("verified"), std::string::npos);
  }
}

TEST(ExplainCli, MeasuredOnTheCpu) {
  const Ran ran = explain("--why --batch decode-1 --device cpu --threads 2 --measured");
  EXPECT_EQ(ran.code, 0) << ran.out;
  EXPECT_EQ(tenths_of_parts(ran.out), 1000) << ran.out;
  EXPECT_NE(ran.out.find("measured"), std::string::npos);
}

TEST(ExplainCli, DrawsEveryItem) {
  const test::TemporaryDirectory folder;
  const Ran ran = explain("--batch decode-1 --svg " + folder.path("plan.svg") + " --html " +
                          folder.path("plan.html"));
  EXPECT_EQ(ran.code, 0) << ran.out;
  for (const char* name : {"plan.svg", "plan.html"}) {
    std::ifstream file(folder.path(name));
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    std::size_t items = 0;
    for (std::size_t at = 0; (at = text.find("<title>worker ", at)) != std::string::npos; ++at) {
      ++items;
    }
    EXPECT_EQ(items, 256U) << name;
  }
}

TEST(ExplainCli, RefusalsAreOneLineAndExitCodeTwo) {
  for (const char* words :
       {"--batch nope", "no-such-file.json", "--measured", "--policy nonsense", "--workers 0",
        "--batch skewed --policy fixed_chunk", "--batch skewed --kv-chunk 16",
        "--batch skewed --policy fixed_chunk --kv-chunk 17", "--device tpu", "--bogus"}) {
    const Ran ran = explain(words);
    EXPECT_EQ(ran.code, 2) << words << ": " << ran.out;
    EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), '\n'), 1) << words << ": " << ran.out;
  }
}

}  // namespace
}  // namespace plait
