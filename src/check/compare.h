// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "check/run_problem.h"
#include "oracle/oracle.h"
#include "oracle/problem.h"

namespace plait::check {

struct Comparison {
  bool ok = true;
  double worst = 0;     // largest error as a share of its bound
  std::string message;  // of the worst element, when not ok
};

/// Compares a result with the oracle. The bound of an element is twice the largest error of the
/// same-precision reference within its request, plus what one rounding of the output, the f32
/// rounding of scores of this size, and rope angles (1e-4 rad at position 2^20) may move it.
/// Rows without keys must be exactly 0 with lse = -inf, and NaN is right only where the oracle
/// says NaN.
Comparison compare_with_oracle(const oracle::Problem& problem, const RunResult& result);

/// The same bits in every element of o and lse; says where not.
Comparison compare_bits(const oracle::HostTensor& a, const oracle::HostTensor& b,
                        const std::string& name);

}  // namespace plait::check
