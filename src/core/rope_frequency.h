// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "plait/spec.h"

namespace plait {

/// Elements of a row that rope rotates: RopeSpec::rotary_dim with its default filled in, 0 without
/// rope.
std::int32_t effective_rotary_dim(const RopeSpec& rope, std::int32_t head_dim);

/// Radians per position of each rotated pair, with scaling applied: [effective_rotary_dim / 2].
std::vector<double> rope_frequencies(const RopeSpec& rope, std::int32_t head_dim);

}  // namespace plait
