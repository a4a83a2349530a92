// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "oracle/host_tensor.h"
#include "plait/error.h"
#include "support/problems.h"

namespace plait::oracle {
namespace {

class MemoryLimit : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("PLAIT_MEMORY_LIMIT"); }
};

TEST_F(MemoryLimit, RefusesWhatTheEnvironmentDoesNotAllow) {
  setenv("PLAIT_MEMORY_LIMIT", "1024", 1);
  EXPECT_NO_THROW(HostTensor::zeros(DType::kF32, {256}, "q"));
  try {
    (void)HostTensor::zeros(DType::kF32, {257}, "q");
    FAIL() << "257 floats were allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_EQ(error.field(), "q");
  }
}

TEST_F(MemoryLimit, RefusesTextThatIsNoNumber) {
  for (const char* text : {"1k", "-5", "0", "99999999999999999999"}) {
    setenv("PLAIT_MEMORY_LIMIT", text, 1);
    EXPECT_THROW(HostTensor::zeros(DType::kF32, {1}, "q"), Error) << text;
  }
}

// A short text may ask for more than its tensors: for steps or lists without end. Each of these
// took minutes, or more memory than there is.
class ShortProblem : public MemoryLimit {
 protected:
  void SetUp() override { setenv("PLAIT_MEMORY_LIMIT", "4000000", 1); }
};

TEST_F(ShortProblem, ManyElementsInOnePlace) {
  using test::Json;
  for (const char* fill : {"zeros", "ones", "nan"}) {
    Json document = test::paged_example();
    Json& pool = document["kv"]["k_cache"];
    pool = test::generated({std::int64_t{1} << 31, 4, 1, 64}, fill);
    pool["stride"] = {0, 0, 0, 0};
    EXPECT_EQ(test::refused_field(document), "kv.k_cache") << fill;
    pool["shape"] = {1000, 4, 1, 64};
    document["kv"]["v_cache"] = pool;
    EXPECT_NO_THROW(parse_problem(document.dump(), nullptr)) << fill;
  }
}

TEST_F(ShortProblem, RopePositionsOfPagesFarApart) {
  using test::Json;
  Json document = test::paged_example();
  document["kv"]["kind"] = "selected";
  document["rope"] = {{"kind", "half"},
                      {"k_positions", {{0, 1, 2, 3, 4}, Json::array(), {5, 6, 7}}}};
  document["kv"]["positions"] = {0, 4000, 4};
  EXPECT_NO_THROW(parse_problem(document.dump(), nullptr));
  document["kv"]["positions"] = {0, 2147483000, 4};
  EXPECT_EQ(test::refused_field(document), "rope.k_positions[0]");
  // Each request alone would fit.
  document["kv"]["positions"] = {0, 400000, 400000};
  EXPECT_EQ(test::refused_field(document), "rope.k_positions[2]");
}

TEST_F(ShortProblem, BlocksOfOneToken) {
  using test::Json;
  const std::int64_t keys = 1000000;
  Json document = test::mean_probe(1, keys, {{"kind", "none"}}, 1, 1);
  document["dtype"]["kv"] = "f8_e4m3";
  document["kv"] = {{"kind", "bsr"},
                    {"k", test::generated({keys, 1, 1}, "ones")},
                    {"v", test::generated({keys, 1, 1}, "ones")},
                    {"block_rows", 1},
                    {"block_cols", 4},
                    {"indptr", {0, 1}},
                    {"indices", {0}}};
  EXPECT_NO_THROW(parse_problem(document.dump(), nullptr));
  document["kv"]["block_cols"] = 1;
  EXPECT_EQ(test::refused_field(document), "kv.block_cols");
}

}  // namespace
}  // namespace plait::oracle
