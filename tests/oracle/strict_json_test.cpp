// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "oracle/strict_json.h"

#include <gtest/gtest.h>

#include <string_view>

#include "oracle/parse_problem.h"
#include "plait/error.h"

namespace plait::oracle {
namespace {

using namespace std::string_view_literals;

// Found by tests/fuzz/problem_json.cpp.
TEST(StrictJson, TextAfterANulIsNotIgnored) {
  EXPECT_NO_THROW(parse_strict_json("{\"version\": 1}"sv, "problem"));
  try {
    parse_strict_json("{\"version\": 1}\0garbage"sv, "problem");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_EQ(error.field(), "problem");
    EXPECT_EQ(error.value(), "a NUL byte at offset 14");
  }
}

TEST(StrictJson, AnEmptyKeyIsRefusedByName) {
  try {
    (void)parse_problem("{\"version\": 1, \"\": true}"sv, nullptr);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), "\"\"");
  }
}

}  // namespace
}  // namespace plait::oracle
