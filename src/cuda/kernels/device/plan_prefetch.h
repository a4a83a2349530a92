// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/kernels/common/params.h"
#include "cuda/kernels/device/ptx_sm80.h"

namespace plait::device {

/// Asks the L2 for the beginning of the plan, all lines at once; by all threads of a grid as they
/// start. A worker finds its first item by a chain of dependent loads (headers, slice, run, piece,
/// row block), and each would wait for memory on its own.
__device__ __forceinline__ void prefetch_plan(const AttentionParams& p) {
  constexpr i64 kLineBytes = 128;
  constexpr i64 kMostLines = 2048;  // what a few blocks can ask for; longer plans are read late
  const i64 line = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (line < min_of(kMostLines, p.plan_bytes / kLineBytes)) {
    prefetch_l2(reinterpret_cast<const char*>(p.plan) + line * kLineBytes);
  }
}

}  // namespace plait::device
