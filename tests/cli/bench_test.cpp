// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// plait bench from outside: what it prints, not how fast it is.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <regex>
#include <string>

#include "support/paths.h"

namespace plait {
namespace {

TEST(BenchCli, CalibratePrintsEveryCoefficientOfBothTileClasses) {
  const std::string command =
      test::plait_binary().string() + " bench --calibrate --repetitions 1 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string out;
  char buffer[4096];
  while (std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) out.append(buffer, n);
  EXPECT_EQ(WEXITSTATUS(pclose(pipe)), 0) << out;
  const std::regex table(
      "device,family,q_tile,head_dim,per_item,per_tile,per_kv_token,per_state_row\n"
      "(\\w+),cpu,\\d+,128,\\d+,\\d+,\\d+,\\d+\n"
      "(\\w+),cpu,64,128,\\d+,\\d+,\\d+,\\d+\n");
  EXPECT_TRUE(std::regex_match(out, table)) << out;
  EXPECT_FALSE(std::regex_search(out, std::regex("128,\\d+,0,0,"))) << "keys cost nothing: " << out;
}

}  // namespace
}  // namespace plait
