// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Named realistic batches: what tests, `plait explain --batch` and the planner's benchmark share.
// Lengths come from integer arithmetic, so that the batches are the same everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/owned_batch.h"
#include "plait/capacity.h"
#include "plait/spec.h"

namespace plait {

struct CorpusCase {
  std::string name;
  std::string what;  // one line for people
  AttentionSpec spec;
  OwnedBatch batch;
};

/// Names in order.
std::vector<std::string_view> corpus_names();

/// Throws Error naming `batch` and the known names.
CorpusCase corpus_case(std::string_view name);

/// `count` lengths in [128, 32768], about log-normal with median 2000.
std::vector<std::int32_t> skewed_lengths(int count, std::uint64_t seed);

}  // namespace plait
