// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Every case from the field as a named test, on the CPU and on a GPU where there is one.
#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "check/field/cases.h"
#include "plait/error.h"
#include "support/cuda_options.h"

namespace plait::check::field {

void PrintTo(const FieldCase& field, std::ostream* out) {
  *out << field.number << ' ' << field.name;
}

namespace {

class Field : public testing::TestWithParam<FieldCase> {};
class GpuField : public testing::TestWithParam<FieldCase> {};

std::string test_name(const testing::TestParamInfo<FieldCase>& info) {
  const std::string number = std::to_string(info.param.number);
  return "Case" + std::string(number.size() < 2 ? "0" : "") + number + "_" +
         std::string(info.param.name);
}

void run_case(const FieldCase& field_case, const RunOptions& options) {
  try {
    field_case.body(FieldRun(options));
  } catch (const CheckFailed& failure) {
    FAIL() << failure.what();
  } catch (const Error& error) {
    FAIL() << "refused: " << error.what();
  }
}

TEST_P(Field, Cpu) { run_case(GetParam(), {}); }

TEST_P(GpuField, Cuda) {
  std::string reason;
  const auto options = test::cuda_options(&reason);
  if (!options) GTEST_SKIP() << reason;
  run_case(GetParam(), *options);
}

INSTANTIATE_TEST_SUITE_P(, Field, testing::ValuesIn(field_cases().begin(), field_cases().end()),
                         test_name);
INSTANTIATE_TEST_SUITE_P(, GpuField, testing::ValuesIn(field_cases().begin(), field_cases().end()),
                         test_name);

}  // namespace
}  // namespace plait::check::field
