// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A Problem through the public engine: spec, batch, plan, run, results on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "oracle/host_tensor.h"
#include "oracle/problem.h"
#include "plait/attention.h"

namespace plait::check {

struct RunOptions {
  Device device;
  std::string family = "auto";
  std::int32_t num_threads = 0;
  bool graph = false;  // capture the run in a graph, plan again, and take the replay's results
  bool spread_outputs = false;  // o and lse with strides of their own (SpreadOutput)
};

struct RunResult {
  oracle::HostTensor o;    // [total_q, num_qo_heads, head_dim_vo]
  oracle::HostTensor lse;  // f32 [total_q, num_qo_heads]; no storage unless asked for
  std::string family;
  std::string device;
  PlanSummary summary;
  double plan_us = 0;
  double run_us = 0;
};

/// "cpu", "cuda" or "cuda:N". Throws Error{kInvalidArgument} naming `field`.
Device parse_device(const std::string& text, const std::string& field);
std::string device_name(Device device);

/// The spec that `problem` describes.
AttentionSpec spec_of(const oracle::Problem& problem);

/// Runs `problem` in checked mode, with outputs and workspace full of NaN before. Throws Error for
/// anything that the engine refuses.
RunResult run_problem(const oracle::Problem& problem, const RunOptions& options);

}  // namespace plait::check
