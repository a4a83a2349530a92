// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace plait::check {

/// Problem number `index` of the random series `seed`: a problem file without named tensors, so
/// that its text alone reproduces it. Covers every kv.kind, mask, option, policy, dtype, layout,
/// stride pattern and aliasing; small enough for the fp64 oracle.
nlohmann::json generate_problem(std::uint64_t seed, std::uint64_t index);

}  // namespace plait::check
