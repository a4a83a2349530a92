// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "plait/spec.h"

namespace plait::cuda {

/// Turns per position of each rotated pair, as AttentionParams::rope_turns wants them: high and low
/// float alternating, rotary_dim / 2 pairs. Empty without rope.
std::vector<float> rope_turns(const RopeSpec& rope, int head_dim);

}  // namespace plait::cuda
