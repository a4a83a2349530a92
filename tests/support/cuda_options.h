// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "check/operand_memory.h"
#include "check/run_problem.h"
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

}  // namespace plait::test
