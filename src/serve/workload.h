// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/trace.h"

namespace plait::serve {

/// Requests of a generated workload unless --limit says otherwise.
inline constexpr std::int64_t kDefaultWorkloadRequests = 64;

/// A seeded synthetic trace, the same on every machine:
///   sharegpt-like   chat: log-normal prompts (median 130) and answers (median 180)
///   uniform:a:b     prompts uniform in [a, b], answers of 256
///   skewed          log-normal prompts of 128..32768 (median 2048), answers of 32..256
///   shared-prefix   a tree: 8 system prompts of 2048..6144 tokens, 4 documents of 1024..4096 for
///                   each, popular ones more often, then a prompt of their own (median 200)
///   parallel:n      n samples of each prompt of 1024..4096 tokens, arriving together
/// Arrivals are Poisson at 8 requests/s. Throws Error{kInvalidArgument} naming --workload.
Trace generate_workload(std::string_view text, std::int64_t num_requests, std::uint64_t seed);

/// The forms above, for help texts and messages.
std::string known_workloads();

}  // namespace plait::serve
