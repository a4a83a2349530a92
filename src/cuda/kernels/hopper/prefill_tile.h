// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a warpgroup of the prefill kernel computes of a tile besides its softmax: logits, and the
// output that their probabilities go into.
#pragma once

#include "cuda/kernels/device/wgmma.h"
#include "cuda/kernels/hopper/prefill_layout.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

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

/// Of columns 0, 1, 8, 9, 16, 17 and so on, a bit each: those below `end`.
PLAIT_DEVICE u32 columns_below(i32 end) {
  const u32 at = static_cast<u32>(max_of(end, 0));
  const u32 count = at / 8 * 2 + min_of(at % 8, 2U);
  return count < 32 ? (1U << count) - 1 : ~0U;
}

/// Puts `hidden` in place of what a thread's rows do not see.
template <class C>
PLAIT_DEVICE void mask_tile(float (&s)[C::kTileN / 2], const SlotRange (&range)[2], i32 tile_slot,
                            i32 lane, float hidden) {
  static_assert(C::kTileN <= 128, "a bit for each of a row's columns");
  const i32 column0 = tile_slot + (lane & 3) * 2;
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    const u32 seen =
        columns_below(range[r].end - column0) & ~columns_below(range[r].begin - column0);
#pragma unroll
    for (i32 i = 0; i < C::kTileN / 4; ++i) {
      if ((seen >> i & 1) == 0) s[i / 2 * 4 + r * 2 + i % 2] = hidden;
    }
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
