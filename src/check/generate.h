// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace plait::check {

/// What random problems are drawn from: every kv.kind, mask, option, policy, dtype, layout, stride
/// pattern and aliasing; or, of these, what serving systems use most, for kernel families that are
/// made for nothing else and would decline nearly all of the former.
enum class Aim { kEverything, kCommon };

/// Problem number `index` of the random series `seed`: a problem file without named tensors, so
/// that its text alone reproduces it; small enough for the fp64 oracle.
nlohmann::json generate_problem(std::uint64_t seed, std::uint64_t index,
                                Aim aim = Aim::kEverything);

}  // namespace plait::check
