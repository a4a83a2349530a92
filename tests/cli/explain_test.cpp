// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// plait explain from outside: the parts of a step, the drawing, refusals.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "support/temporary_directory.h"
#include "support/tool.h"

namespace plait {
namespace {

test::Ran explain(const std::string& words) {
  return test::Tool::shell("\"$PLAIT\" explain " + words).finish();
}

/// Sum of the percentages of all parts, in tenths; on standard output or in a drawing.
int tenths_of_parts(const std::string& text) {
  const std::regex part(R"((floor|imbalance|merge|launch|planning) (?:.* )?(\d+)\.(\d) %)");
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
  const test::TemporaryDirectory folder;
  const std::string svg = folder.path("plan.svg");
  for (const char* batch :
       {"decode-64", "skewed", "shared-prefix", "window", "mixed", "selected-pages"}) {
    const test::Ran ran = explain(std::string("--why --svg ") + svg + " --batch " + batch);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(tenths_of_parts(ran.out), 1000) << ran.out;
    EXPECT_EQ(tenths_of_parts(test::content_of(svg)), 1000) << batch;
    EXPECT_NE(ran.out.find("verified"), std::string::npos);
  }
}

TEST(ExplainCli, MeasuredOnTheCpu) {
  const test::Ran ran = explain("--why --batch decode-1 --device cpu --threads 2 --measured");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(tenths_of_parts(ran.out), 1000) << ran.out;
  EXPECT_NE(ran.out.find("measured"), std::string::npos);
}

TEST(ExplainCli, DrawsEveryItem) {
  const test::TemporaryDirectory folder;
  const test::Ran ran = explain("--batch decode-1 --svg " + folder.path("plan.svg") + " --html " +
                                folder.path("plan.html"));
  EXPECT_EQ(ran.code, 0) << ran.err;
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
    const test::Ran ran = explain(words);
    EXPECT_EQ(ran.code, 2) << words << ": " << ran.err;
    EXPECT_EQ(test::lines_of(ran.err), 1) << words << ": " << ran.err;
  }
}

}  // namespace
}  // namespace plait
