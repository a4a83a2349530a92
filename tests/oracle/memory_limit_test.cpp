// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "oracle/host_tensor.h"
#include "plait/error.h"

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

}  // namespace
}  // namespace plait::oracle
