// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/ops/vector_loop.h"

PLAIT_OPERATION_LAUNCH_INFO();

extern "C" __global__ void __launch_bounds__(plait::device::ops::kThreads)
    PLAIT_KERNEL_NAME(const __grid_constant__ plait::device::MergeStatesParams p) {
  using namespace plait::device;
  using In = Element<KernelConfig::kQDtype>;
  using Out = Element<KernelConfig::kODtype>;
  ops::for_each_vector(p.rows, p.heads, [&](i64 row, i32 head) {
    const float* lse = p.lse_states + row * p.lse_in_stride_row + head * p.lse_in_stride_head;
    const auto* in = ops::words<KernelConfig::kQDtype>(
        p.o_states, row * p.in_stride_row + head * p.in_stride_head);
    auto* o = ops::words<KernelConfig::kODtype>(p.o, row * p.o_stride_row + head * p.o_stride_head);
    float total_lse = neg_inf();
    // The weights are computed again for every 32 elements; states are few and dims are small.
    for (i32 i = ops::lane(); i < ceil_div(p.dim, 32) * 32; i += 32) {
      const bool inside = i < p.dim;
      float total = 0.0F;
      total_lse = neg_inf();
      for (i32 s = 0; s < p.states; ++s) {
        const float next_lse = lse[s * p.lse_in_stride_state];
        const float next = inside ? In::widen(in[s * p.in_stride_state + i]) : 0.0F;
        const MergeWeights w = merge_weights<DeviceMath>(total_lse, next_lse);
        // An empty fold takes the state as it is, even an empty one.
        total = s == 0 && next_lse != neg_inf() ? next : fold_element(w, total, next);
        total_lse = w.lse;
      }
      if (inside) o[i] = Out::narrow(total);
    }
    if (ops::lane() == 0) p.lse[row * p.lse_stride_row + head * p.lse_stride_head] = total_lse;
  });
}
