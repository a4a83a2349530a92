// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/rope_frequency.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace plait {
namespace {

double scaled(const RopeSpec& rope, double frequency) {
  switch (rope.scaling) {
    case RopeScalingKind::kNone: return frequency;
    case RopeScalingKind::kLinear: return frequency / rope.factor;
    case RopeScalingKind::kLlama31: break;
  }
  // Short waves stay, long waves are stretched by `factor`, those between are blended by how often
  // they fit into the original context.
  const double waves =
      static_cast<double>(rope.original_max_position) * frequency / (2.0 * std::numbers::pi);
  const double kept = std::clamp(
      (waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
  return (1.0 - kept) * frequency / rope.factor + kept * frequency;
}

}  // namespace

std::int32_t effective_rotary_dim(const RopeSpec& rope, std::int32_t head_dim) {
  if (rope.kind == RopeKind::kNone) return 0;
  return rope.rotary_dim == 0 ? head_dim : rope.rotary_dim;
}

std::vector<double> rope_frequencies(const RopeSpec& rope, std::int32_t head_dim) {
  const std::int32_t rotary_dim = effective_rotary_dim(rope, head_dim);
  std::vector<double> frequencies;
  frequencies.reserve(static_cast<std::size_t>(rotary_dim / 2));
  for (std::int32_t pair = 0; pair < rotary_dim / 2; ++pair) {
    frequencies.push_back(scaled(rope, std::pow(rope.theta, -2.0 * pair / rotary_dim)));
  }
  return frequencies;
}

}  // namespace plait
