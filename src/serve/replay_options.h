// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plait/dtype.h"
#include "plait/tensor.h"
#include "serve/scheduler.h"
#include "serve/trace.h"
#include "serve/virtual_clock.h"

namespace plait::serve {

/// One thing that an ablation changes; everything else stays as in the baseline.
enum class Feature : std::uint8_t {
  kPlanning,      // off: unsplit and round robin, what an engine without a planner does
  kBalancing,     // off: round robin instead of longest first
  kChunking,      // off: one chunk per tile
  kComposition,   // off: shared prefixes are read once per request
  kIndexed,       // contiguous K/V instead of pages
  kTilePerItem,   // off: the tile class of the batch average for all
  kWriteThrough,  // off: single contributions pass through a partial state
  kRope,          // the other of fused and separate rotation
};

/// "balancing", "chunking", "composition", "indexed", "tile", "write-through", "rope", "planning".
std::string_view to_string(Feature feature) noexcept;

enum class RopeMode : std::uint8_t { kSeparate, kFused, kNone };

struct ReplayOptions {
  std::string trace_path;  // empty: a generated workload
  TraceFormat trace_format = TraceFormat::kAuto;
  std::string workload = "sharegpt-like";
  std::int64_t limit = 0;  // 0: the whole trace, kDefaultWorkloadRequests of a workload
  std::uint64_t seed = 1;
  double time_scale = 1.0;
  double rate = 0.0;  // requests/s; 0: as the trace says

  std::string geometry = "tiny";
  DType kv_dtype = DType::kBF16;
  RopeMode rope = RopeMode::kSeparate;

  SchedulerOptions scheduler;    // pool_pages is derived from pool_tokens
  std::int64_t pool_tokens = 0;  // 0: see default_pool_tokens
  bool compose = true;

  bool plan_only = false;
  Device device;
  std::string family = "auto";
  std::int32_t num_threads = 0;
  std::optional<std::int32_t> run_graphs;  // EngineOptions::run_graphs, on a GPU
  bool measure_workers = false;  // on a GPU: another kernel specialisation; a CPU always does
  bool checked = false;          // Attention's checked mode; plan_only: every plan is verified
  std::int32_t num_workers = 0;  // 0: what the backend or the reference device offers
  std::vector<Feature> ablate;
  std::optional<AffineTime> other_time;
  std::int32_t long_tokens = 4096;  // requests with longer prompts count as long
};

/// 2^20 tokens, but not more than 4 GiB of K and V (64 GiB on a GPU) when they are computed.
std::int64_t default_pool_tokens(const ReplayOptions& options, std::int64_t kv_bytes_per_token);

/// A comma-separated list, or "all": what can differ under the other options. Throws naming
/// --ablate.
std::vector<Feature> parse_features(std::string_view text, const ReplayOptions& options);

/// Whether requests may read a shared prefix together: not without a prefix cache, nor where every
/// layer has a window.
bool composes(const ReplayOptions& options);

/// Throws Error{kInvalidArgument} for options that are out of range or do not belong together.
void validate(const ReplayOptions& options);

}  // namespace plait::serve
