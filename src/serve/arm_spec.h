// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The baseline of a replay and its ablations: each arm plans and runs the same steps over the
// same K and V, with exactly one feature changed against its reference.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plait/capacity.h"
#include "serve/replay_options.h"

namespace plait::serve {

struct ArmSpec {
  std::string name;    // "baseline" or what differs from the reference
  std::string change;  // one sentence
  std::optional<Feature> feature;
  std::int32_t reference = 0;  // index of the arm it is compared with
  Policy policy;
  bool compose = true;
  bool contiguous = false;
  bool fused_rope = false;
};

/// Baseline first. Contiguous K/V cannot share a prefix, so where the baseline composes, the
/// reference of `indexed` is the arm without composition (added if it was not asked for).
std::vector<ArmSpec> make_arms(const ReplayOptions& options);

/// Whether workers record when they start and end.
bool measures_workers(const ReplayOptions& options);

/// Bounds for any step of `options.scheduler` over requests of at most `longest` tokens.
Capacity make_capacity(const ReplayOptions& options, std::int64_t longest, bool compose);

}  // namespace plait::serve
