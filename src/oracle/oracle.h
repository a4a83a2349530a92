// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The answer: docs/math.md in fp64, literal and slow. It shares no code with the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "oracle/problem.h"

namespace plait::oracle {

struct Answer {
  std::vector<double> o;    // [total_q, num_qo_heads, head_dim_vo]
  std::vector<double> lse;  // [total_q, num_qo_heads]; empty for a sum reduction
};

/// Exact attention of the (already rounded) inputs. Throws Error{kUnsupported} for a user variant.
Answer solve(const Problem& problem);

/// What the arithmetic of a good kernel loses: f32 scores and accumulation, rotated q and k and
/// the probabilities rounded to 16 bits where kernels feed matrix units with them, the output
/// rounded to its dtype.
Answer solve_same_precision(const Problem& problem);

/// How far small errors in scores can move an answer, per query row and head. With weights w_j (the
/// probabilities, or the sigmoids of a sum) and score errors d_j:
struct Sensitivity {
  std::vector<double> value;  // sum_j w_j |v_j|
  std::vector<double> o;      // sum_j w_j d_j (|v_j| + |o|)
  std::vector<double> lse;    // sum_j w_j d_j
};

/// d_j = relative * (sum_d |q_d k_d| |scale| + |bias|) + angle * |q_rot| |k_rot| |scale|.
Sensitivity sensitivity(const Problem& problem, double relative, double angle);

}  // namespace plait::oracle
