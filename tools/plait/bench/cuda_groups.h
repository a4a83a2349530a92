// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "plait/bench/report.h"

namespace plait::bench {

struct CudaBenchOptions {
  int device = 0;
  std::string family = "auto";
  bool shuffled_pages = true;
  int repetitions = 15;
};

/// The groups that exist for CUDA devices.
inline constexpr const char* kCudaGroups[] = {"decode", "prefill", "transition"};

/// Runs one of them. decode: against a plain read of the same bytes; prefill: TFLOP/s; transition:
/// host times of capture, re-planning, switching and growing configurations.
void bench_cuda(const std::vector<std::string>& groups, const CudaBenchOptions& options,
                Report& report);

}  // namespace plait::bench
