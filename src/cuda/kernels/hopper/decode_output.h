// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The end of an item in the decode kernel: its warps' states meet in shared memory.
#pragma once

#include "cuda/kernels/hopper/decode_block.h"
#include "cuda/kernels/hopper/merge.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// float2 index of (row, pair of columns) in a parked state, swizzled against bank conflicts.
template <class C>
PLAIT_DEVICE u32 parked_index(u32 row, u32 pair) {
  return row * (C::kHeadDim / 2) + (pair ^ ((row & 3) << 2));
}

template <class C>
PLAIT_DEVICE void park_state(DecodeShared<C>& s, DecodeState<C>& st, i32 warp, i32 num_rows,
                             bool has_blocks, unsigned char* slot) {
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    st.sum[r] += __shfl_xor_sync(~0U, st.sum[r], 1);
    st.sum[r] += __shfl_xor_sync(~0U, st.sum[r], 2);
    const i32 row = lane / 4 + 8 * r;
    if ((lane & 3) == 0) {
      s.stat_max[warp][row] = has_blocks ? st.max[r] : neg_inf();
      s.stat_sum[warp][row] = has_blocks ? st.sum[r] : 0.0F;
    }
    if (has_blocks && row < num_rows) {
      float2* out = reinterpret_cast<float2*>(slot);
#pragma unroll
      for (i32 i = 0; i < C::kHeadDim / 8; ++i) {
        out[parked_index<C>(static_cast<u32>(row), static_cast<u32>(i * 4 + (lane & 3)))] =
            float2{st.o[i].x[2 * r], st.o[i].x[2 * r + 1]};
      }
    }
  }
  if (lane == 0) s.parked_at[warp] = static_cast<i32>(slot - &s.slots[0][0][0]);
}

/// Merges the parked states of the warps of a head, in their order, and writes them out; by these
/// warps, threads `rank` 0 up. Calls `release()` when all have been read: nothing that it waits for
/// should be what is written here.
template <class C, class Release>
PLAIT_DEVICE void write_item(const Params& p, DecodeShared<C>& s, const Work& w, i32 kv_head,
                             const HeadShare<C>& share, i32 rank, Release&& release) {
  constexpr i32 kQuads = C::kHeadDim / 4;
  const i32 first_warp = share.first_warp(static_cast<i32>(threadIdx.x) / 32);
  const i32 state_row = w.state_row < 0 ? -1 : w.state_row + (kv_head - w.head) * w.num_fused_rows;
  const i32 num_quads = w.num_fused_rows * kQuads;
  const float4* parked = reinterpret_cast<const float4*>(s.slots);
  for (i32 first = 0;; first += share.warps * 32) {
    const bool valid = first + rank < num_quads;
    const i32 row = valid ? (first + rank) / kQuads : 0;
    const i32 quad = (first + rank) % kQuads;
    const i32 at =
        static_cast<i32>(parked_index<C>(static_cast<u32>(row), static_cast<u32>(quad) * 2) / 2);
    float best = neg_inf();
    float maxima[C::kWarps], sums[C::kWarps];
    float4 values[C::kWarps];
    // All loads first: one after the other they take longer than all the rest of an item's end.
#pragma unroll
    for (i32 i = 0; i < C::kWarps; ++i) {
      maxima[i] = neg_inf();
      sums[i] = 0.0F;
      values[i] = float4{0.0F, 0.0F, 0.0F, 0.0F};
      if (i >= share.warps) continue;
      maxima[i] = s.stat_max[first_warp + i][row];
      sums[i] = s.stat_sum[first_warp + i][row];
      best = fmaxf(best, maxima[i]);
      // A warp that saw no key parked nothing; a NaN sum goes on.
      if (sums[i] != 0.0F) values[i] = parked[s.parked_at[first_warp + i] / 16 + at];
    }
    const bool last = first + share.warps * 32 >= num_quads;
    if (last) release();
    if (valid) {
      const float base = best == neg_inf() ? 0.0F : best;
      float4 sum{0.0F, 0.0F, 0.0F, 0.0F};
      float total = 0.0F;
#pragma unroll
      for (i32 i = 0; i < C::kWarps; ++i) {
        const float weight = fast_exp2(maxima[i] - base);
        total += weight * sums[i];
        sum.x += weight * values[i].x;
        sum.y += weight * values[i].y;
        sum.z += weight * values[i].z;
        sum.w += weight * values[i].w;
      }
      const float inv = total == 0.0F ? 0.0F : v_scale(p, kv_head) / total;
      const float4 o{sum.x * inv, sum.y * inv, sum.z * inv, sum.w * inv};
      const float lse = natural_lse(best, total);
      if (state_row < 0) {
        write_output4<C>(p, w.fused_row_begin + row, kv_head, quad * 4, o, lse);
      } else {
        const i64 out = state_row + row;
        __stcg(reinterpret_cast<float4*>(p.state_o + out * C::kHeadDim) + quad, o);
        if (quad == 0) __stcg(p.state_lse + out, lse);
      }
    }
    if (last) return;
  }
}

#endif

}  // namespace plait::device::hopper
