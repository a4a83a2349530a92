// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/kernels/common/params.h"
#include "cuda/kernels/device/ptx_sm80.h"

namespace plait::device {

/// Asks the L2 for the beginnings of the plan and of the page lists, all lines at once; by all
/// threads of a grid as they start. A worker finds its first page by a chain of dependent loads
/// (headers, slice, run, piece, row block, page id; in hopper decode header, start, page id), and
/// each would wait for memory on its own.
__device__ __forceinline__ void prefetch_plan(const AttentionParams& p) {
  constexpr i64 kLineBytes = 128;
  constexpr i64 kMostLines = 2048;  // what a few blocks can ask for; what comes later is read late
  const i64 offset = (static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x) * kLineBytes;
  if (offset >= kMostLines * kLineBytes) return;
  if (offset < p.plan_bytes) prefetch_l2(reinterpret_cast<const char*>(p.plan) + offset);
#pragma unroll
  for (i32 view = 0; view < kMaxParamViews; ++view) {
    if (offset < static_cast<i64>(p.num_page_ids[view]) * 4) {
      prefetch_l2(reinterpret_cast<const char*>(p.page_ids[view]) + offset);
    }
  }
}

}  // namespace plait::device
