// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a replay showed, ready to be printed: one struct behind the table, the JSON and the HTML.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "serve/replay.h"
#include "serve/stats.h"

namespace plait::serve {

struct Metric {
  std::string name;
  std::string unit;
  Distribution distribution;
};

/// Requests with prompts up to `long_tokens`, or beyond.
struct RequestClass {
  std::string name;
  std::int64_t requests = 0;
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::vector<Metric> metrics;
};

/// When planning pays. Savings are predicted by the cost model against unsplit, round-robin work
/// on flat views. Where attention measured less than predicted they shrink with it; where it
/// measured more they do not grow: overheads that no plan can save are the likelier reason.
struct BreakEven {
  std::int64_t sampled_steps = 0;
  std::int32_t layers = 0;
  double model_ratio = 1.0;  // measured over predicted attention time; 1 if nothing was measured
  double saving_scale() const noexcept { return model_ratio < 1.0 ? model_ratio : 1.0; }
  Distribution saving_per_layer_us;
  Distribution plan_us;
  double break_even_layers = 0.0;   // mean plan cost over mean saving per layer; < 0: no saving
  std::int64_t steps_not_paid = 0;  // of the sampled ones: plan cost above the saving of all layers
  std::optional<Estimate> attention_share;  // of a step; needs --other-us
};

struct Comparison {
  std::string name;
  std::string change;
  std::string reference;
  std::optional<PairedDifference> attention_us;  // absent with --plan-only
  PairedDifference plan_us;
  PairedDifference predicted_us;
  PairedDifference metadata_bytes;
  PairedDifference planned_kv_bytes;
  double output_difference = 0.0;
};

struct Summary {
  bool plan_only = false;
  std::int64_t steps = 0;
  std::int64_t requests = 0;
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t computed_rows = 0;  // query rows that ran
  double reused_fraction = 0.0;    // of admitted prompt tokens
  double virtual_seconds = 0.0;
  double composed_fraction = 0.0;  // of scheduled (request, step) pairs
  std::int64_t composed_steps = 0;
  std::int32_t most_levels = 0;         // of shared prefixes in a step
  double planned_over_requested = 0.0;  // K and V that plans read over those of the requests
  double plan_seconds = 0.0;
  double attention_seconds = 0.0;
  double rows_per_second = 0.0;  // of attention time
  double gflops = 0.0;
  double kv_gbytes_per_second = 0.0;
  std::int64_t workspace_high_water = 0;
  std::int64_t metadata_high_water = 0;
  std::int32_t pages_high_water = 0;
  std::vector<Metric> step_metrics;
  RequestClass short_requests;
  RequestClass long_requests;
  BreakEven break_even;
  std::vector<Comparison> comparisons;
};

Summary summarize(const ReplayResult& result, const ReplayOptions& options);

/// Milliseconds at which each step ends when it lasts `other` plus its measured attention and
/// planning, and starts when its requests have arrived and the step before is over.
std::vector<double> modelled_step_ends_ms(const ReplayResult& result, const AffineTime& other);

}  // namespace plait::serve
