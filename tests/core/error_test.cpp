// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/error.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace plait {
namespace {

TEST(Error, NamesFieldValueAndExpectation) {
  const Error error(ErrorCode::kInvalidArgument, "kv.page_size", "0", "at least 1");
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.field(), "kv.page_size");
  EXPECT_EQ(error.value(), "0");
  EXPECT_EQ(error.expected(), "at least 1");
  EXPECT_STREQ(error.what(), "kv.page_size: got 0, expected at least 1");
}

TEST(Error, EveryCodeHasANameOfItsOwn) {
  std::set<std::string> names;
  const int last = static_cast<int>(ErrorCode::kInternal);
  for (int i = 0; i <= last; ++i) names.emplace(to_string(static_cast<ErrorCode>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(last) + 1);
  EXPECT_EQ(names.count("unknown"), 0U);
}

}  // namespace
}  // namespace plait
