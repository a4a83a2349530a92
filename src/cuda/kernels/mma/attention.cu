// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Attention over plan items on tensor cores through mma.sync: one persistent CTA per worker walks
// its slices of runs. See config.h for what a kernel is specialised for and item.h for what it
// does.
#include "cuda/kernels/common/launch_info.h"
#include "cuda/kernels/device/grid_dependency.h"
#include "cuda/kernels/device/plan_prefetch.h"
#include "cuda/kernels/mma/item.h"

PLAIT_LAUNCH_INFO(static_cast<plait::device::u32>(plait::device::mma::Config::kThreads),
                  static_cast<plait::device::u32>(plait::device::mma::Config::kShared.total),
                  static_cast<plait::device::u32>(plait::device::mma::Config::kMinBlocks), 1);

extern "C" __global__ void __launch_bounds__(plait::device::mma::Config::kThreads,
                                             plait::device::mma::Config::kMinBlocks)
    PLAIT_KERNEL_NAME(const __grid_constant__ plait::device::AttentionParams p) {
  using namespace plait::device;
  using C = mma::Config;
  extern __shared__ __align__(16) char shared[];
  u64 begin_time = 0;
  if constexpr (C::kMeasured) begin_time = global_nanoseconds();
  allow_next_grid();
  prefetch_plan(p);
  if (p.merge_role == kMergeOnly) {
    wait_for_previous_grid();
    mma::Arrivals::merge_grid(p);
    return;
  }
  if (threadIdx.x == 0) {
    mma::open_cursor(p, reinterpret_cast<mma::ItemFacts*>(shared + C::kShared.facts));
  }
  mma::Item item(p, shared);
  while (item.process_next()) {
  }
  if constexpr (C::kMeasured) {
    __syncthreads();
    if (threadIdx.x == 0 && p.worker_times != nullptr) {
      p.worker_times[2 * blockIdx.x] = begin_time;
      p.worker_times[2 * blockIdx.x + 1] = global_nanoseconds();
    }
  }
  wait_for_previous_grid();
}
