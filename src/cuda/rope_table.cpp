// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/rope_table.h"

#include <cmath>
#include <cstddef>
#include <numbers>

namespace plait::cuda {
namespace {

/// Radians per position of pair `pair`.
double scaled_frequency(const RopeSpec& rope, int rotary_dim, int pair) {
  const double frequency = std::pow(rope.theta, -2.0 * pair / rotary_dim);
  switch (rope.scaling) {
    case RopeScalingKind::kNone: return frequency;
    case RopeScalingKind::kLinear: return frequency / rope.factor;
    case RopeScalingKind::kLlama31: break;
  }
  // Short waves stay, long waves are stretched, those between are blended by how often they fit in
  // the original context.
  const double waves =
      static_cast<double>(rope.original_max_position) * frequency / (2.0 * std::numbers::pi);
  if (waves > rope.high_freq_factor) return frequency;
  if (waves < rope.low_freq_factor) return frequency / rope.factor;
  const double blend =
      (waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - blend) * frequency / rope.factor + blend * frequency;
}

}  // namespace

int effective_rotary_dim(const RopeSpec& rope, int head_dim) {
  if (rope.kind == RopeKind::kNone) return 0;
  return rope.rotary_dim == 0 ? head_dim : rope.rotary_dim;
}

std::vector<float> rope_turns(const RopeSpec& rope, int head_dim) {
  const int rotary_dim = effective_rotary_dim(rope, head_dim);
  std::vector<float> turns;
  turns.reserve(static_cast<std::size_t>(rotary_dim));
  for (int pair = 0; pair < rotary_dim / 2; ++pair) {
    const double value = scaled_frequency(rope, rotary_dim, pair) / (2.0 * std::numbers::pi);
    const auto high = static_cast<float>(value);
    turns.push_back(high);
    turns.push_back(static_cast<float>(value - static_cast<double>(high)));
  }
  return turns;
}

}  // namespace plait::cuda
