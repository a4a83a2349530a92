// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/ops/vector_loop.h"

PLAIT_OPERATION_LAUNCH_INFO();

extern "C" __global__ void __launch_bounds__(plait::device::ops::kThreads,
                                             plait::device::ops::kBlocks)
    PLAIT_KERNEL_NAME(const __grid_constant__ plait::device::MergeStatesParams p) {
  using namespace plait::device;
  using In = Element<KernelConfig::kQDtype>;
  using Out = Element<KernelConfig::kODtype>;
  ops::for_each_vector(p.rows, p.heads, [&](i64 row, i32 head) {
    const float* lse = p.lse_states + row * p.lse_in_stride_row + head * p.lse_in_stride_head;
    const auto* in = ops::words<KernelConfig::kQDtype>(
        p.o_states, row * p.in_stride_row + head * p.in_stride_head);
    auto* o = ops::words<KernelConfig::kODtype>(p.o, row * p.o_stride_row + head * p.o_stride_head);
    float largest = neg_inf();
    for (i32 s = ops::lane(); s < p.states; s += 32) {
      largest = fmaxf(largest, lse[s * p.lse_in_stride_state]);
    }
#pragma unroll
    for (i32 d = 16; d > 0; d >>= 1) largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, d));
    const float base = merge_base(largest);
    MergeResult result{0.0F, base};
    // Weights are computed again for every 32 elements: there are few such, and no room for all.
    for (i32 i = ops::lane(); i < ceil_div(p.dim, 32) * 32; i += 32) {
      const bool inside = i < p.dim;
      float total = 0.0F;
      float value = 0.0F;
      for (i32 first = 0; first < p.states; first += kStatesPerSum) {
        const i32 end = min_of(p.states, first + kStatesPerSum);
        float part_total = 0.0F;
        float part = 0.0F;
        for (i32 at = first; at < end; at += 32) {
          const i32 own = at + ops::lane();
          const float own_weight =
              own < end ? merge_weight<DeviceMath>(lse[own * p.lse_in_stride_state], base) : 0.0F;
          for (i32 s = at; s < min_of(end, at + 32); ++s) {
            const float weight = __shfl_sync(~0U, own_weight, s - at);
            part_total += weight;
            if (weight == 0.0F || !inside) continue;  // an empty state may hold anything
            part = __fmaf_rn(weight, In::widen(in[s * p.in_stride_state + i]), part);
          }
        }
        total += part_total;
        value += part;
      }
      result = merge_result<DeviceMath>(base, total);
      if (inside) o[i] = Out::narrow(value * result.scale);
    }
    if (ops::lane() == 0) p.lse[row * p.lse_stride_row + head * p.lse_stride_head] = result.lse;
  });
}
