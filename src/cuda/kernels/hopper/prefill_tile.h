// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a warpgroup of the prefill kernel computes of a tile: logits, their softmax, and the output
// that they go into.
#pragma once

#include "cuda/kernels/device/wgmma.h"
#include "cuda/kernels/hopper/hooks.h"
#include "cuda/kernels/hopper/prefill_layout.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// Softmax state of a thread's two rows.
struct RowState {
  float max[2];  // base 2
  float sum[2];  // this thread's columns only
};

/// s = Q K^T over one tile: issues and commits.
template <class C>
PLAIT_DEVICE void issue_logits(float (&s)[C::kTileN / 2], u64 q_desc, u64 k_desc) {
  pin_registers(s);
  wgmma_fence();
#pragma unroll
  for (u32 step = 0; step < C::kHeadDim / 16; ++step) {
    wgmma_ss_k<C::kElement>(
        s, advance_descriptor(q_desc, (step >> 2) * kQPartBytes + (step & 3) * 32),
        advance_descriptor(k_desc, (step >> 2) * PrefillShared<C>::kPartBytes + (step & 3) * 32),
        step != 0);
  }
  wgmma_commit();
}

/// o += P V over one tile, the steps of 16 tokens from kBegin to before kEnd: issues and commits.
template <class C, u32 kBegin = 0, u32 kEnd = C::kTileN / 16>
PLAIT_DEVICE void issue_output(float (&o)[C::kHeadDim / 2],
                               const u32 (&probabilities)[C::kTileN / 16][4], u64 v_desc) {
  if constexpr (kBegin == 0) {  // later steps go on with the same registers
    pin_registers(o);
    wgmma_fence();
  }
#pragma unroll
  for (u32 step = kBegin; step < kEnd; ++step) {
    constexpr u32 kBox = C::kBox;
    const u32 offset = step * 16 / kBox * (kBox * C::kParts * 128) + step * 16 % kBox * 128;
    wgmma_rs_mn<C::kElement>(o, probabilities[step], advance_descriptor(v_desc, offset), true);
  }
  wgmma_commit();
}

template <class C>
PLAIT_DEVICE void mask_tile(float (&s)[C::kTileN / 2], const SlotRange (&range)[2], i32 tile_slot,
                            i32 lane) {
  const i32 column0 = tile_slot + (lane & 3) * 2;
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    const i32 begin = range[r].begin - column0;
    const i32 end = range[r].end - column0;
#pragma unroll
    for (i32 i = 0; i < C::kTileN / 8; ++i)
#pragma unroll
      for (i32 e = 0; e < 2; ++e) {
        const i32 column = i * 8 + e;
        if (column < begin || column >= end) s[i * 4 + r * 2 + e] = neg_inf();
      }
  }
}

/// The largest of a thread's logits in each of its rows.
template <class C>
PLAIT_DEVICE void row_maxima(float (&top)[2], const float (&s)[C::kTileN / 2]) {
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    top[r] = fmaxf(s[r * 2], s[r * 2 + 1]);
#pragma unroll
    for (i32 i = 1; i < C::kTileN / 8; ++i) {
      top[r] = fmaxf(top[r], fmaxf(s[i * 4 + r * 2], s[i * 4 + r * 2 + 1]));
    }
  }
}

/// Turns logits into probabilities in place; `top` are their maxima, `factor` rescales what was
/// accumulated before. Base 2 is exponent(logit) + shift, where ALiBi shifts them; `exponent` does
/// not decrease.
template <class C, class Exponent>
PLAIT_DEVICE void softmax_tile(float (&s)[C::kTileN / 2], const float (&top)[2], RowState& rows,
                               float (&factor)[2], const Exponent& exponent,
                               const float (&shift)[2]) {
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    float m = C::kAlibi ? exponent(top[r], -shift[r]) : exponent(top[r]);
    m = fmaxf(m, __shfl_xor_sync(~0U, m, 1));
    m = fmaxf(m, __shfl_xor_sync(~0U, m, 2));
    m = fmaxf(m, rows.max[r]);
    const float reference = m == neg_inf() ? 0.0F : m;
    const float base = C::kAlibi ? __fsub_rn(reference, shift[r]) : reference;
    factor[r] = fast_exp2(rows.max[r] - reference);
    rows.max[r] = m;
    float sum = 0.0F;
#pragma unroll
    for (i32 i = 0; i < C::kTileN / 8; ++i)
#pragma unroll
      for (i32 e = 0; e < 2; ++e) {
        const float probability = fast_exp2(exponent(s[i * 4 + r * 2 + e], base));
        s[i * 4 + r * 2 + e] = probability;
        sum += probability;
      }
    rows.sum[r] = rows.sum[r] * factor[r] + sum;
  }
}

template <class C>
PLAIT_DEVICE void pack_tile(u32 (&probabilities)[C::kTileN / 16][4],
                            const float (&s)[C::kTileN / 2]) {
#pragma unroll
  for (i32 i = 0; i < C::kTileN / 16; ++i)
#pragma unroll
    for (i32 e = 0; e < 4; ++e) {
      probabilities[i][e] = pack<C>(s[i * 8 + e * 2], s[i * 8 + e * 2 + 1]);
    }
}

template <i32 kCount>
PLAIT_DEVICE void rescale(float (&o)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (i32 i = 0; i < kCount; ++i) o[i] *= factor[(i >> 1) & 1];
}

/// Makes rows of V outside [first, last) of a tile zero. Both warpgroups do it to the whole tile,
/// each for itself.
template <class C>
PLAIT_DEVICE void clear_v_tile(u32 v_address, i32 first, i32 last, i32 group, i32 thread) {
  constexpr u32 kBox = C::kBox;
  constexpr i32 kChunks = C::kParts * 8;  // of 16 bytes
#pragma unroll 1                          // registers are scarce, and edge tiles few
  for (i32 i = thread; i < C::kTileN * kChunks; i += 128) {
    const i32 row = i / kChunks;
    if (row >= first && row < last) continue;
    const u32 r = static_cast<u32>(row);
    store_shared_fill16(v_address + r / kBox * (kBox * C::kParts * 128) +
                            static_cast<u32>(i % kChunks / 8) * (kBox * 128) + r % kBox * 128 +
                            static_cast<u32>(i & 7) * 16,
                        0U);
  }
  fence_async_shared();
  named_barrier_sync(kWarpgroupBarrier + static_cast<u32>(group), 128);
}

#endif

}  // namespace plait::device::hopper
