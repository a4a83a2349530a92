// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "check/operand_memory.h"
#include "check/run_problem.h"
#include "plait/attention.h"
#include "plait/error.h"

namespace plait::test {

/// Options of runs on the first CUDA device; nothing, and why, where there is none.
inline std::optional<check::RunOptions> cuda_options(std::string* reason) {
  check::RunOptions options;
  options.device = {DeviceKind::kCuda, 0};
  try {
    check::make_operand_memory(options.device);
  } catch (const Error& error) {
    *reason = std::string("no CUDA device: ") + error.what();
    return std::nullopt;
  }
  return options;
}

/// The same with kernels of one family; nothing, and why, where the device has none.
inline std::optional<check::RunOptions> family_options(const std::string& family,
                                                       std::string* reason) {
  auto options = cuda_options(reason);
  if (!options) return std::nullopt;
  options->family = family;
  EngineOptions engine;
  engine.device = options->device;
  engine.family = family;
  AttentionSpec spec;
  spec.num_qo_heads = spec.num_kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_vo = 128;
  const std::vector<std::string> refusals = Engine(engine).refusals(spec);
  if (refusals.empty()) return options;
  *reason = refusals.front();
  return std::nullopt;
}

}  // namespace plait::test
