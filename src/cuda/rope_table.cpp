// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/rope_table.h"

#include <numbers>

#include "core/rope_frequency.h"

namespace plait::cuda {

std::vector<float> rope_turns(const RopeSpec& rope, int head_dim) {
  std::vector<float> turns;
  for (const double frequency : rope_frequencies(rope, head_dim)) {
    const double value = frequency / (2.0 * std::numbers::pi);
    const auto high = static_cast<float>(value);
    turns.push_back(high);
    turns.push_back(static_cast<float>(value - static_cast<double>(high)));
  }
  return turns;
}

}  // namespace plait::cuda
