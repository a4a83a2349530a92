// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Attention over plan items on tensor cores through mma.sync: one persistent CTA per worker walks its
// slices of runs. See config.h for what a kernel is specialised for and item.h for what it does.
#include "cuda/kernels/common/launch_info.h"
#include "cuda/kernels/mma/item.h"

PLAIT_LAUNCH_INFO(plait::device::mma::Config::kThreads, plait::device::mma::SharedPlan::total,
                  plait::device::mma::SharedPlan::kMinBlocks, 1);

extern "C" __global__ void __launch_bounds__(plait::device::mma::Config::kThreads,
                                             plait::device::mma::SharedPlan::kMinBlocks)
    PLAIT_KERNEL_NAME(const __grid_constant__ plait::device::AttentionParams p) {
  using namespace plait::device;
  using C = mma::Config;
  extern __shared__ __align__(16) char shared[];
  const mma::GroupView group(p);
  const ClassHeader& header = group.header->classes[p.class_index];
  const i32 worker = static_cast<i32>(blockIdx.x);
  u64 begin_time = 0;
  if constexpr (C::kMeasured) begin_time = global_nanoseconds();
  if (p.class_index < group.header->num_classes && worker < header.num_workers) {
    const i32* indptr = mma::plan_array<i32>(p.plan, header.worker_offset);
    const auto* slices = mma::plan_array<Slice>(p.plan, header.slice_offset);
    const i32 first = indptr[worker];
    const i32 last = indptr[worker + 1];
    if (first < last) {
      mma::Item item(p, group, shared);
      for (i32 s = first; s < last; ++s) {
        const Slice slice = slices[s];
        for (i32 h = slice.first; h < slice.first + slice.count; ++h) item.process(slice.run, h);
      }
    }
  }
  if constexpr (C::kMeasured) {
    __syncthreads();
    if (threadIdx.x == 0 && p.worker_times != nullptr) {
      p.worker_times[2 * worker] = begin_time;
      p.worker_times[2 * worker + 1] = global_nanoseconds();
    }
  }
}
