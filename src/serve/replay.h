// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The main job: a serving trace through batching, planning and attention, measured.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "serve/arm.h"
#include "serve/geometry.h"
#include "serve/replay_options.h"

namespace plait::serve {

/// What a step was and what the baseline took for it.
struct StepRecord {
  std::int64_t start_ns = 0;  // virtual
  std::int64_t end_ns = 0;
  std::int64_t newest_arrival_ns = 0;
  std::int64_t kv_tokens = 0;  // sum of kv_len
  std::int32_t requests = 0;
  std::int32_t decode_rows = 0;
  std::int32_t prefill_rows = 0;
  std::int32_t waiting = 0;
  std::int32_t pages_used = 0;      // not free (idle cached blocks included)
  std::int32_t composed = 0;        // requests that read a shared prefix together
  std::int32_t levels = 0;          // of shared prefixes: views of the composed batch less one
  std::int32_t metadata_bytes = 0;  // what the upload moves
  std::int64_t workspace_bytes = 0;
  float plan_us = 0.0F;     // composition, planning and upload together
  float compose_us = 0.0F;  // of that, deciding what is read together
  float upload_us = 0.0F;   // of that, the copy
  float attention_us = 0.0F;
  float merge_us = 0.0F;
  float rope_us = 0.0F;
  float append_us = 0.0F;
  float predicted_us = 0.0F;         // by the cost model, all layers
  float predicted_imbalance = 0.0F;  // largest over mean load
  float measured_imbalance = 0.0F;   // longest over mean worker; 0: not measured
  float saving_us = -1.0F;           // predicted time without planning minus with; < 0: not sampled
  double flops = 0.0;
  double kv_bytes = 0.0;          // K and V of the requests, each once
  double planned_kv_bytes = 0.0;  // what the plan's items read
};

struct ArmStep {
  float attention_us = 0.0F;  // rotation included where an arm of the comparison rotates apart
  float plan_us = 0.0F;
  float predicted_us = 0.0F;
  std::int32_t metadata_bytes = 0;
  double planned_kv_bytes = 0.0;
};

struct RequestRecord {
  std::int32_t input_tokens = 0;
  std::int32_t output_tokens = 0;
  std::int32_t decode_steps = 0;
  std::int32_t first_token_step = -1;
  std::int32_t last_token_step = -1;
  std::int64_t arrival_ns = 0;
  std::int64_t first_scheduled_ns = -1;
  double prefill_us = 0.0;  // attention (plan only: planning) of the steps that prefilled it
  double decode_us = 0.0;   // of the steps in which it decoded
};

struct ReplayResult {
  std::string trace_name;
  std::string device;
  std::string family;
  std::int32_t num_workers = 0;
  std::int64_t pool_tokens = 0;
  std::int64_t pool_bytes = 0;
  double wall_seconds = 0.0;
  double checksum = 0.0;
  SchedulerCounts counts;
  std::int64_t evictions = 0;
  std::vector<ArmSpec> arms;
  std::vector<StepRecord> steps;
  std::vector<std::vector<ArmStep>> arm_steps;  // [arm][step], baseline included
  std::vector<double> output_difference;        // [arm]
  std::vector<RequestRecord> requests;
};

struct ReplayProgress {
  std::int64_t steps = 0;
  std::int64_t finished = 0;
  std::int64_t total = 0;
  double virtual_seconds = 0.0;
};

/// Called after every step; must be quick.
using ReplayObserver = std::function<void(const ReplayProgress&)>;

/// The trace that the options ask for: read or generated, rescaled. Throws as the readers do.
Trace load_trace(const ReplayOptions& options);

/// Runs `trace` to its end. Throws Error for options that are refused. The same trace and options
/// form the same batches on every machine.
ReplayResult run_replay(const Trace& trace, const ReplayOptions& options,
                        const ReplayObserver& observer = {});

}  // namespace plait::serve
