// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a warp of the decode kernel computes of a block: logits, and the softmax state that they go
// into.
#pragma once

#include "cuda/kernels/device/math.h"
#include "cuda/kernels/hopper/decode_layout.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// Query rows as the A operands of the steps along the head dim.
template <class C>
struct Queries {
  FragmentA held[kSharedQueries<C> ? 1 : C::kHeadDim / 16];

  /// By all warps.
  PLAIT_DEVICE void load(const Params& p, DecodeShared<C>& s, const Work& w, i32 kv_head) {
    if constexpr (kSharedQueries<C>) {
      constexpr i32 kChunks = C::kHeadDim / 8;  // of 16 bytes
      for (i32 i = static_cast<i32>(threadIdx.x); i < kDecodeRows * kChunks; i += C::kWarps * 32) {
        const i32 row = i / kChunks;
        const u32 chunk = static_cast<u32>(i % kChunks);
        const u32 to = shared_address(s.queries) + chunk / 8 * kPartBytes +
                       swizzle128(static_cast<u32>(row), chunk % 8);
        if (row < w.num_fused_rows) {
          const RowHead at = row_head<C>(p, w.fused_row_begin + row, kv_head);
          const u16* from = static_cast<const u16*>(p.q) + at.row * p.q_stride_row +
                            at.head * p.q_stride_head + chunk * 8;
          store_shared16(to, __ldg(reinterpret_cast<const uint4*>(from)));
        } else {
          store_shared_fill16(to, 0U);
        }
      }
      named_barrier_sync(kItemBarrier, C::kWarps * 32);
    } else {
      const i32 lane = static_cast<i32>(threadIdx.x) & 31;
#pragma unroll
      for (i32 half = 0; half < 2; ++half) {
        const i32 row = lane / 4 + 8 * half;
        const bool valid = row < w.num_fused_rows;
        const i32 fused = w.fused_row_begin + (valid ? row : 0);
        const RowHead at = row_head<C>(p, fused, kv_head);
        const u32* src =
            reinterpret_cast<const u32*>(static_cast<const u16*>(p.q) + at.row * p.q_stride_row +
                                         at.head * p.q_stride_head) +
            (lane & 3);
#pragma unroll
        for (i32 step = 0; step < C::kHeadDim / 16; ++step) {
          held[step].word[half] = valid ? __ldg(src + step * 8) : 0U;
          held[step].word[half + 2] = valid ? __ldg(src + step * 8 + 4) : 0U;
        }
      }
    }
  }

  PLAIT_DEVICE FragmentA at(DecodeShared<C>& s, u32 step) const {
    if constexpr (kSharedQueries<C>) {
      const u32 lane = threadIdx.x & 31;
      FragmentA a;
      load_matrices(a.word, shared_address(s.queries) + (step >> 2) * kPartBytes +
                                swizzle128(lane & 15, (step & 3) * 2 + (lane >> 4)));
      return a;
    } else {
      return held[step];
    }
  }
};

/// logits[4 n ...]: those (unscaled) of tokens 8 n .. 8 n + 7 of a block.
template <class C>
PLAIT_DEVICE void block_logits(float (&logits)[8], DecodeShared<C>& s, const Queries<C>& q,
                               u32 k_address) {
  constexpr u32 kSteps = C::kHeadDim / 16;
  const u32 lane = threadIdx.x & 31;
  const u32 token = (lane & 7) + ((lane >> 4) << 3);
  FragmentC acc[2][2] = {};  // two chains per 8 tokens, to shorten the dependency
#pragma unroll
  for (u32 step = 0; step < kSteps; ++step) {
    const u32 chunk = (step & 3) * 2 + ((lane >> 3) & 1);
    const u32 chain = step / (kSteps / 2);
    u32 b[4];
    load_matrices(b, k_address + (step >> 2) * kPartBytes + swizzle128(token, chunk));
    const FragmentA a = q.at(s, step);
    multiply_add<C::kElement>(acc[chain][0], a, FragmentB{b[0], b[1]});
    multiply_add<C::kElement>(acc[chain][1], a, FragmentB{b[2], b[3]});
  }
#pragma unroll
  for (i32 j = 0; j < 2; ++j)
#pragma unroll
    for (i32 e = 0; e < 4; ++e) logits[j * 4 + e] = acc[0][j].x[e] + acc[1][j].x[e];
}

/// Makes -inf of the logits of a block from slot `begin` on that the thread's two rows do not see.
PLAIT_DEVICE void mask_block(float (&logits)[8], const SlotRange (&range)[2], i32 begin) {
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
#pragma unroll
  for (i32 i = 0; i < 8; ++i) {
    const i32 at = begin + i / 4 * 8 + (lane & 3) * 2 + (i & 1);
    const SlotRange& seen = range[(i >> 1) & 1];
    if (at < seen.begin || at >= seen.end) logits[i] = neg_inf();
  }
}

/// Rows of V that no row of the item sees may hold anything, NaN included: makes them zero.
template <class C>
PLAIT_DEVICE void clear_v_rows(u32 v_address, i32 first, i32 last) {
  constexpr i32 kChunks = C::kParts * 8;  // of 16 bytes
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
  for (i32 i = lane; i < kBlockTokens * kChunks; i += 32) {
    const i32 row = i / kChunks;
    if (row >= first && row < last) continue;
    store_shared_fill16(v_address + static_cast<u32>(i % kChunks / 8) * kPartBytes +
                            static_cast<u32>(row) * 128 + static_cast<u32>(i & 7) * 16,
                        0U);
  }
  __syncwarp();
}

/// A warp's softmax state over 16 rows: thread t holds rows t / 4 and t / 4 + 8.
template <class C>
struct DecodeState {
  FragmentC o[C::kHeadDim / 8];
  float max[2];
  float sum[2];  // this thread's columns only

  PLAIT_DEVICE void clear() {
#pragma unroll
    for (i32 i = 0; i < C::kHeadDim / 8; ++i) o[i] = FragmentC{};
    max[0] = max[1] = neg_inf();
    sum[0] = sum[1] = 0.0F;
  }
};

/// state += softmax step over one block, given scaled logits in base 2.
template <class C>
PLAIT_DEVICE void block_update(DecodeState<C>& st, const float (&s)[8], u32 v_address) {
  const u32 lane = threadIdx.x & 31;
  FragmentA a;
  float factor[2];
  bool moved = false;
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    float m = fmaxf(fmaxf(s[2 * r], s[2 * r + 1]), fmaxf(s[4 + 2 * r], s[5 + 2 * r]));
    m = fmaxf(m, __shfl_xor_sync(~0U, m, 1));
    m = fmaxf(m, __shfl_xor_sync(~0U, m, 2));
    m = fmaxf(m, st.max[r]);
    const float base = m == neg_inf() ? 0.0F : m;
    moved = moved || m != st.max[r];
    factor[r] = fast_exp2(st.max[r] - base);
    st.max[r] = m;
    const float p0 = fast_exp2(s[2 * r] - base);
    const float p1 = fast_exp2(s[2 * r + 1] - base);
    const float p2 = fast_exp2(s[4 + 2 * r] - base);
    const float p3 = fast_exp2(s[5 + 2 * r] - base);
    st.sum[r] = st.sum[r] * factor[r] + ((p0 + p1) + (p2 + p3));
    a.word[r] = pack<C>(p0, p1);
    a.word[r + 2] = pack<C>(p2, p3);
  }
  if (__any_sync(~0U, moved)) {
#pragma unroll
    for (i32 i = 0; i < C::kHeadDim / 8; ++i) {
      st.o[i].x[0] *= factor[0];
      st.o[i].x[1] *= factor[0];
      st.o[i].x[2] *= factor[1];
      st.o[i].x[3] *= factor[1];
    }
  }
  const u32 token = lane & 15;
#pragma unroll
  for (u32 pair = 0; pair < C::kHeadDim / 16; ++pair) {
    const u32 chunk = (pair & 3) * 2 + (lane >> 4);
    u32 b[4];
    load_matrices_transposed(b, v_address + (pair >> 2) * kPartBytes + swizzle128(token, chunk));
    multiply_add<C::kElement>(st.o[2 * pair], a, FragmentB{b[0], b[1]});
    multiply_add<C::kElement>(st.o[2 * pair + 1], a, FragmentB{b[2], b[3]});
  }
}

#endif

}  // namespace plait::device::hopper
