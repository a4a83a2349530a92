// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/device/rope_angle.h"
#include "cuda/kernels/ops/vector_loop.h"

PLAIT_OPERATION_LAUNCH_INFO();

extern "C" __global__ void __launch_bounds__(plait::device::ops::kThreads,
                                             plait::device::ops::kBlocks)
    PLAIT_KERNEL_NAME(const __grid_constant__ plait::device::ApplyRopeParams p) {
  using namespace plait::device;
  using In = Element<KernelConfig::kQDtype>;
  using Out = Element<KernelConfig::kODtype>;
  ops::for_each_vector(p.tokens, p.heads, [&](i64 token, i32 head) {
    const i32 position = p.positions[token];
    const auto* x =
        ops::words<KernelConfig::kQDtype>(p.x, token * p.x_stride_token + head * p.x_stride_head);
    auto* out = ops::words<KernelConfig::kODtype>(
        p.out, token * p.out_stride_token + head * p.out_stride_head);
    const i32 pairs = p.rotary_dim / 2;
    // A pair is read and written by one lane, so that `out` may be x.
    for (i32 pair = ops::lane(); pair < pairs; pair += 32) {
      const i32 first = KernelConfig::kRopeInterleaved ? 2 * pair : pair;
      const i32 second = KernelConfig::kRopeInterleaved ? first + 1 : pair + pairs;
      const Rotation r = rotation_at(p.rope_turns, pair, position);
      const float a = In::widen(x[first]);
      const float b = In::widen(x[second]);
      out[first] = Out::narrow(a * r.cosine - b * r.sine);
      out[second] = Out::narrow(b * r.cosine + a * r.sine);
    }
    for (i32 i = p.rotary_dim + ops::lane(); i < p.dim; i += 32) {
      out[i] = Out::narrow(In::widen(x[i]));
    }
  });
}
