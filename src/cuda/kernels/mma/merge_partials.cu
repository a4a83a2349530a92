// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Merges a plan's partial states in a launch of its own, after the attention kernels. A merge is the
// work of one CTA, or of several where there are fewer merges than CTAs.
#include "cuda/kernels/common/launch_info.h"
#include "cuda/kernels/mma/merge.h"

namespace plait::device::mma {
inline constexpr i32 kMergeThreads = 128;
}  // namespace plait::device::mma

PLAIT_LAUNCH_INFO(plait::device::mma::kMergeThreads, 0, 4, 1);

extern "C" __global__ void __launch_bounds__(plait::device::mma::kMergeThreads, 4)
    PLAIT_KERNEL_NAME(const __grid_constant__ plait::device::AttentionParams p) {
  using namespace plait::device;
  constexpr i32 kWarps = mma::kMergeThreads / 32;
  const mma::GroupView group(p);
  const mma::OutputWriter writer{p, group};
  const mma::RowMerger merger{writer, group};
  const i32 num_merges = group.header->num_merges;
  const i32 ctas = static_cast<i32>(gridDim.x);
  const i32 parts = num_merges > 0 ? max_of(1, ctas / num_merges) : 1;
  const i32 warp = static_cast<i32>(threadIdx.x) / 32;
  const i32 lane = static_cast<i32>(threadIdx.x) % 32;
  for (i32 unit = static_cast<i32>(blockIdx.x); unit < num_merges * parts; unit += ctas) {
    const Merge merge = group.merge(unit / parts);
    const i32 part = unit % parts;
    const i32 rows = merge.num_fused_rows * merge.head_count;
    for (i32 r = part * kWarps + warp; r < rows; r += parts * kWarps) {
      merger.merge_row(merge, r / merge.num_fused_rows, r % merge.num_fused_rows, lane);
    }
  }
}
