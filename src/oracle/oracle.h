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

/// Sizes of the quantities that rounding acts on, per query row and head: what an error bound
/// needs.
struct Magnitudes {
  std::vector<double> score;  // largest sum_d |q_d k_d| * |scale| + |bias| over visible keys
  std::vector<double> value;  // largest |v| * |v_scale| over visible keys, times the weight sum for
                              // a sum reduction
  std::vector<double> rotation;  // largest |q_rot| |k_rot| |scale|; 0 without rope
};
Magnitudes magnitudes(const Problem& problem);

}  // namespace plait::oracle
