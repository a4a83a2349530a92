// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/ops/vector_loop.h"

PLAIT_OPERATION_LAUNCH_INFO();

extern "C" __global__ void __launch_bounds__(plait::device::ops::kThreads,
                                             plait::device::ops::kBlocks)
    PLAIT_KERNEL_NAME(const __grid_constant__ plait::device::FinalizeStateParams p) {
  using namespace plait::device;
  using In = Element<KernelConfig::kQDtype>;
  using Out = Element<KernelConfig::kODtype>;
  ops::for_each_vector(p.rows, p.heads, [&](i64 row, i32 head) {
    const float lse = p.lse_state[row * p.lse_stride_row + head * p.lse_stride_head];
    const float sink = p.sink != nullptr ? p.sink[head * p.sink_stride] : neg_inf();
    const float factor = sink_factor<DeviceMath>(lse, sink);
    const auto* in = ops::words<KernelConfig::kQDtype>(
        p.o_state, row * p.in_stride_row + head * p.in_stride_head);
    auto* o = ops::words<KernelConfig::kODtype>(p.o, row * p.o_stride_row + head * p.o_stride_head);
    for (i32 i = ops::lane(); i < p.dim; i += 32) {
      // An empty state may hold anything.
      o[i] = Out::narrow(lse == neg_inf() ? 0.0F : __fmul_rn(In::widen(in[i]), factor));
    }
  });
}
