// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Everything that `plait check` asks of one problem.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "check/run_problem.h"

namespace plait::check {

enum class Outcome { kPassed, kFailed, kDeclined };

struct CheckReport {
  Outcome outcome = Outcome::kPassed;
  std::vector<std::string> failures;  // one sentence each
  std::string declined;               // why no backend serves the problem
  std::string family;
  double worst = 0;  // largest error against the oracle as a share of its bound
  int runs = 0;      // engine runs that were compared
};

/// The problem against the oracle, with everything it must not read poisoned; then bit for bit
/// against itself: run again, replayed from a graph (CUDA), with moved pages, with other strides
/// and layout, and, under the batch_invariant policy, with another number of workers, each request
/// alone, in another order, with another page size, flat instead of cascade, and its prefill in two
/// chunks; at last one request while the keys and values of all others are NaN. Never throws for
/// what the engine does. Leaves NaN in the memory of `problem`, which copies of it share.
CheckReport check_problem(const oracle::Problem& problem, const RunOptions& options,
                          std::uint64_t seed);

/// The smallest problem that still fails among those with optional parts of `document` removed.
/// Gives up after `attempts` checks.
nlohmann::json shrink_problem(const nlohmann::json& document, const RunOptions& options,
                              std::uint64_t seed, int attempts);

}  // namespace plait::check
