// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The two matrix products of a tile, on the tensor cores for 16-bit elements, on the CUDA cores for
// f32. Both leave scores and outputs in the layout of FragmentC, so that everything else is shared.
#pragma once

#include "cuda/kernels/device/ptx_sm80.h"
#include "cuda/kernels/mma/config.h"

namespace plait::device::mma {

/// Which part of the CTA's work a warp does.
struct WarpPlace {
  i32 lane, row, key, column;  // first row, first key of a tile, first output column
  i32 warp, key_warp;

  __device__ __forceinline__ WarpPlace() {
    using C = Config;
    const u32 thread = static_cast<u32>(fresh_thread_index());
    lane = static_cast<i32>(thread % 32);
    warp = static_cast<i32>(thread / 32);
    // Constants where a dimension is not split: the compiler cannot know how many warps there are.
    const u32 rest = thread / 32 / C::kRowWarps;
    const u32 row_warp = C::kRowWarps == C::kWarps ? thread / 32 : thread / 32 % C::kRowWarps;
    key_warp = C::kKeyWarps == 1 ? 0 : static_cast<i32>(rest % C::kKeyWarps);
    row = C::kRowWarps == 1 ? 0 : static_cast<i32>(row_warp * 16 * C::kRowBlocks);
    key = key_warp * C::kWarpKeys;
    column = C::kColumnWarps == 1 ? 0 : static_cast<i32>(rest / C::kKeyWarps * C::kWarpColumns);
  }
};

using Scores = FragmentC[Config::kRowBlocks][Config::kKeyTiles];
using Outputs = FragmentC[Config::kRowBlocks][Config::kColumnTiles];

/// scores = Q K^T for the warp's rows and keys.
__device__ __forceinline__ void multiply_queries_keys(Scores& scores, const char* q_tile,
                                                      const char* k_tile, const WarpPlace& at) {
  using C = Config;
#pragma unroll
  for (i32 m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
    for (i32 n = 0; n < C::kKeyTiles; ++n) scores[m][n] = FragmentC{};
  }
  if constexpr (C::kTensorCores) {
    const u32 lane = static_cast<u32>(at.lane);
    const u32 q = shared_address(q_tile) +
                  (static_cast<u32>(at.row) + lane % 16) * C::kShared.q_pitch + lane / 16 * 16;
    const u32 k = shared_address(k_tile) +
                  (static_cast<u32>(at.key) + lane / 16 * 8 + lane % 8) * C::kShared.k_pitch +
                  lane / 8 % 2 * 16;
    // Fragments are loaded one step ahead of their products: nothing else hides the latency of
    // shared memory with two warps on a scheduler.
    constexpr i32 kPairs = C::kKeyTiles / 2;
    constexpr i32 kSteps = C::kQkPadded / 16 * kPairs;
    FragmentA a[2][C::kRowBlocks];
    u32 b[2][4];
#pragma unroll
    for (i32 m = 0; m < C::kRowBlocks; ++m) {
      load_matrices(a[0][m].word, q + static_cast<u32>(m * 16 * C::kShared.q_pitch));
    }
    load_matrices(b[0], k);
#pragma unroll
    for (i32 d = 0; d < C::kQkPadded / 16; ++d) {
#pragma unroll
      for (i32 pair = 0; pair < kPairs; ++pair) {
        const i32 step = d * kPairs + pair;
        const i32 next_d = pair + 1 < kPairs ? d : d + 1;
        const i32 next_n = pair + 1 < kPairs ? pair * 2 + 2 : 0;
        if (step + 1 < kSteps) {
          load_matrices(b[(step + 1) % 2],
                        k + static_cast<u32>(next_n * 8 * C::kShared.k_pitch + next_d * 32));
          if (next_d != d) {
#pragma unroll
            for (i32 m = 0; m < C::kRowBlocks; ++m) {
              load_matrices(a[next_d % 2][m].word,
                            q + static_cast<u32>(m * 16 * C::kShared.q_pitch + next_d * 32));
            }
          }
        }
        const FragmentB b0{{b[step % 2][0], b[step % 2][1]}};
        const FragmentB b1{{b[step % 2][2], b[step % 2][3]}};
#pragma unroll
        for (i32 m = 0; m < C::kRowBlocks; ++m) {
          multiply_add<C::kCompute>(scores[m][2 * pair], a[d % 2][m], b0);
          multiply_add<C::kCompute>(scores[m][2 * pair + 1], a[d % 2][m], b1);
        }
      }
    }
  } else {
    const char* q = q_tile + (at.row + at.lane / 4) * C::kShared.q_pitch;
    const char* k = k_tile + (at.key + at.lane % 4 * 2) * C::kShared.k_pitch;
#pragma unroll 1
    for (i32 d = 0; d < C::kQkPadded; d += 4) {
      const float4 q0 = *reinterpret_cast<const float4*>(q + d * 4);
      const float4 q1 = *reinterpret_cast<const float4*>(q + 8 * C::kShared.q_pitch + d * 4);
#pragma unroll
      for (i32 n = 0; n < C::kKeyTiles; ++n) {
#pragma unroll
        for (i32 e = 0; e < 2; ++e) {
          const float4 x =
              *reinterpret_cast<const float4*>(k + (n * 8 + e) * C::kShared.k_pitch + d * 4);
          float* s = scores[0][n].x;
          s[e] = __fmaf_rn(q0.w, x.w,
                           __fmaf_rn(q0.z, x.z, __fmaf_rn(q0.y, x.y, __fmaf_rn(q0.x, x.x, s[e]))));
          s[2 + e] =
              __fmaf_rn(q1.w, x.w,
                        __fmaf_rn(q1.z, x.z, __fmaf_rn(q1.y, x.y, __fmaf_rn(q1.x, x.x, s[2 + e]))));
        }
      }
    }
  }
}

struct Always {
  __device__ __forceinline__ bool operator()() const { return true; }
};

/// outputs += P V; `p` holds the probabilities where the scores were. With kAsks only if `may` says
/// so, which is asked when all else is ready; false if not.
template <bool kAsks = false, class May = Always>
__device__ __forceinline__ bool multiply_probabilities_values(Outputs& outputs, const Scores& p,
                                                              const char* v_tile, char* shared,
                                                              const WarpPlace& at, May may = {}) {
  using C = Config;
  if constexpr (C::kTensorCores) {
    using E = Element<C::kCompute>;
    const u32 lane = static_cast<u32>(at.lane);
    const u32 v = shared_address(v_tile) +
                  (static_cast<u32>(at.key) + lane % 16) * C::kShared.v_pitch +
                  static_cast<u32>(at.column) * 2 + lane / 16 * 16;
    constexpr i32 kPairs = C::kColumnTiles / 2;
    constexpr i32 kSteps = C::kKeyTiles / 2 * kPairs;
    FragmentA a[C::kKeyTiles / 2][C::kRowBlocks];
    const auto narrow = [&](i32 k) {
#pragma unroll
      for (i32 m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
        for (i32 i = 0; i < 2; ++i) {
          const float* x = p[m][2 * k + i].x;
          a[k][m].word[2 * i] = E::narrow_pair(x[0], x[1]);
          a[k][m].word[2 * i + 1] = E::narrow_pair(x[2], x[3]);
        }
      }
    };
    u32 b[2][4];
    load_matrices_transposed(b[0], v);
    if constexpr (kAsks) {
#pragma unroll
      for (i32 k = 0; k < C::kKeyTiles / 2; ++k) narrow(k);
      if (!may()) return false;
    }
#pragma unroll
    for (i32 k = 0; k < C::kKeyTiles / 2; ++k) {
      if constexpr (!kAsks) narrow(k);
#pragma unroll
      for (i32 pair = 0; pair < kPairs; ++pair) {
        const i32 step = k * kPairs + pair;
        if (step + 1 < kSteps) {
          const i32 next_k = pair + 1 < kPairs ? k : k + 1;
          const i32 next_n = pair + 1 < kPairs ? pair * 2 + 2 : 0;
          load_matrices_transposed(
              b[(step + 1) % 2],
              v + static_cast<u32>(next_k * 16 * C::kShared.v_pitch + next_n * 16));
        }
        const FragmentB b0{{b[step % 2][0], b[step % 2][1]}};
        const FragmentB b1{{b[step % 2][2], b[step % 2][3]}};
#pragma unroll
        for (i32 m = 0; m < C::kRowBlocks; ++m) {
          multiply_add<C::kCompute>(outputs[m][2 * pair], a[k][m], b0);
          multiply_add<C::kCompute>(outputs[m][2 * pair + 1], a[k][m], b1);
        }
      }
    }
  } else {
    if (!may()) return false;
    float* mine = reinterpret_cast<float*>(shared + C::kShared.probabilities) +
                  at.warp * 16 * C::kShared.probability_pitch;
    const i32 row = at.lane / 4;
    __syncwarp();
#pragma unroll
    for (i32 n = 0; n < C::kKeyTiles; ++n) {
#pragma unroll
      for (i32 e = 0; e < 4; ++e) {
        mine[(row + e / 2 * 8) * C::kShared.probability_pitch + n * 8 + at.lane % 4 * 2 + e % 2] =
            p[0][n].x[e];
      }
    }
    __syncwarp();
    const char* v = v_tile + at.key * C::kShared.v_pitch + (at.column + at.lane % 4 * 2) * 4;
#pragma unroll 1
    for (i32 k = 0; k < C::kWarpKeys; ++k) {
      const float p0 = mine[row * C::kShared.probability_pitch + k];
      const float p1 = mine[(row + 8) * C::kShared.probability_pitch + k];
#pragma unroll
      for (i32 n = 0; n < C::kColumnTiles; ++n) {
        const float2 x = *reinterpret_cast<const float2*>(v + k * C::kShared.v_pitch + n * 32);
        float* o = outputs[0][n].x;
        o[0] = __fmaf_rn(p0, x.x, o[0]);
        o[1] = __fmaf_rn(p0, x.y, o[1]);
        o[2] = __fmaf_rn(p1, x.x, o[2]);
        o[3] = __fmaf_rn(p1, x.y, o[3]);
      }
    }
  }
  return true;
}

}  // namespace plait::device::mma
