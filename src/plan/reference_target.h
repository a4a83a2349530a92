// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The device that plans are made for where none is at hand: `plait explain`, `plait replay
// --plan-only`, the corpus and the planner's benchmark.
#pragma once

#include <string_view>

#include "plan/planner.h"

namespace plait {

/// The rows of the cost table that reference_target() takes.
inline constexpr std::string_view kReferenceDevice = "NVIDIA H200";
inline constexpr std::string_view kReferenceFamily = "mma";
/// Two CTAs on each of an H200's 132 SMs.
inline constexpr std::int32_t kReferenceWorkers = 264;

/// kReferenceWorkers workers, query tiles 16 / 64 / 128.
PlanTarget reference_target(const AttentionSpec& spec);

}  // namespace plait
