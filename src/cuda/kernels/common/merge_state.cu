// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/ops/vector_loop.h"

PLAIT_OPERATION_LAUNCH_INFO();

extern "C" __global__ void __launch_bounds__(plait::device::ops::kThreads,
                                             plait::device::ops::kBlocks)
    PLAIT_KERNEL_NAME(const __grid_constant__ plait::device::MergeStateParams p) {
  using namespace plait::device;
  using A = Element<KernelConfig::kQDtype>;
  using B = Element<KernelConfig::kKvDtype>;
  using Out = Element<KernelConfig::kODtype>;
  ops::for_each_vector(p.rows, p.heads, [&](i64 row, i32 head) {
    const float lse_a = p.lse_a[row * p.lse_a_stride_row + head * p.lse_a_stride_head];
    const float lse_b = p.lse_b[row * p.lse_b_stride_row + head * p.lse_b_stride_head];
    MergeWeights w = merge_weights<DeviceMath>(lse_a, lse_b);
    if (p.mask != nullptr && p.mask[row * p.mask_stride] == 0) w = {1.0F, 0.0F, lse_a};
    const auto* a =
        ops::words<KernelConfig::kQDtype>(p.o_a, row * p.o_a_stride_row + head * p.o_a_stride_head);
    const auto* b = ops::words<KernelConfig::kKvDtype>(
        p.o_b, row * p.o_b_stride_row + head * p.o_b_stride_head);
    auto* o = ops::words<KernelConfig::kODtype>(p.o, row * p.o_stride_row + head * p.o_stride_head);
    for (i32 i = ops::lane(); i < p.dim; i += 32) {
      o[i] = Out::narrow(fold_element(w, A::widen(a[i]), B::widen(b[i])));
    }
    __syncwarp();  // lse may be lse_a
    if (ops::lane() == 0) p.lse[row * p.lse_stride_row + head * p.lse_stride_head] = w.lse;
  });
}
