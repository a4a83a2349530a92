// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Finished rows of the prefill kernel, on their way to global memory.
#pragma once

#include "cuda/kernels/hopper/merge.h"
#include "cuda/kernels/hopper/prefill_layout.h"
#include "cuda/kernels/hopper/prefill_softmax.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// Whether finished rows are rearranged in the queries' buffer. Queries that have only one leave it
/// as soon as the last logits are there, or the next ones would come late.
template <class C>
inline constexpr bool kStagedOutput = C::kQStages > 1;

/// The 16 rows of a warp, `first` of them and later ones for the output, and what this thread's two
/// are multiplied by.
struct OutputRows {
  i32 fused0, first, kv_head;
  i32 state_row;  // of the warp's first row, where `stateful`
  bool stateful;
  float scale[2];
};
/// Whether rows leave as f32: as partial states, or because the caller wants states.
PLAIT_DEVICE bool is_wide(const Params& p, const OutputRows& out) {
  return out.stateful || p.write_state != 0;
}
/// Two neighbouring finished elements of row `r`, of columns 8 * block + 2 * (lane % 4) and next.
template <i32 kCount>
PLAIT_DEVICE float2 finished(const OutputRows& out, const float (&o)[kCount], i32 block, i32 r) {
  return float2{o[block * 4 + r * 2] * out.scale[r], o[block * 4 + r * 2 + 1] * out.scale[r]};
}
template <class C, i32 kCount>
PLAIT_DEVICE u32 packed(const OutputRows& out, const float (&o)[kCount], i32 block, i32 r) {
  const float2 value = finished(out, o, block, r);
  return pack<C>(value.x, value.y);
}
template <class C>
PLAIT_DEVICE u16* output_row(const Params& p, const OutputRows& out, i32 row) {
  const RowHead at = row_head<C>(p, out.fused0 + row, out.kv_head);
  return static_cast<u16*>(p.o) + at.row * p.o_stride_row + at.head * p.o_stride_head;
}
/// From the output of a fused row to that of the one `rows` later, where the rows' remainders by
/// the group size differ by that of `rows`.
template <class C>
PLAIT_DEVICE i64 output_distance(const Params& p, i32 rows) {
  const i32 group = group_size<C>(p);
  return rows / group * p.o_stride_row + rows % group * p.o_stride_head;
}

/// Rearranged in shared memory: a warp stores whole rows.
template <class C, class Release>
PLAIT_DEVICE void write_staged(const Params& p, const OutputRows& out,
                               const float (&o)[C::kHeadDim / 2], i32 warp, u32 staging,
                               Release&& release) {
  constexpr i32 kChunks = C::kHeadDim / 8;  // of 16 bytes in a row
  constexpr i32 kRows = 32 / kChunks;       // rows per pass of the warp
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
  const u32 matrix_row = static_cast<u32>(warp * 16 + (lane & 15));
#pragma unroll
  for (i32 block = 0; block < C::kHeadDim / 8; block += 2) {
    const u32 pair = static_cast<u32>(block) / 2;
    store_matrices(staging + (pair >> 2) * kQPartBytes +
                       swizzle128(matrix_row, (pair & 3) * 2 + static_cast<u32>(lane >> 4)),
                   packed<C>(out, o, block, 0), packed<C>(out, o, block, 1),
                   packed<C>(out, o, block + 1, 0), packed<C>(out, o, block + 1, 1));
  }
  __syncwarp();
  uint4 values[16 / kRows];
  const i32 chunk = lane % kChunks;
#pragma unroll
  for (i32 pass = 0; pass < 16 / kRows; ++pass) {
    const u32 row = static_cast<u32>(warp * 16 + pass * kRows + lane / kChunks);
    const u32 column = static_cast<u32>(chunk);
    values[pass] =
        load_shared16(staging + (column >> 3) * kQPartBytes + swizzle128(row, column & 7));
  }
  release();
  // A warp's first row is a multiple of the group size, or of 16 (both are powers of two): from
  // pass to pass, rows move by a distance that is the same for all lanes.
  u16* to = output_row<C>(p, out, 0) + output_distance<C>(p, lane / kChunks) + chunk * 8;
#pragma unroll
  for (i32 pass = 0; pass < 16 / kRows; ++pass) {
    const i32 row = pass * kRows + lane / kChunks;
    // As an intrinsic: a plain assignment of a uint4 becomes four stores of 4 bytes.
    if (row >= out.first) {
      __stcg(reinterpret_cast<uint4*>(to + output_distance<C>(p, pass * kRows)), values[pass]);
    }
  }
}

/// Word i of lane j of four becomes word j of lane i.
PLAIT_DEVICE void transpose_words(u32 (&word)[4]) {
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
#pragma unroll
  for (i32 bit = 1; bit <= 2; bit <<= 1) {
    const bool high = (lane & bit) != 0;
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const u32 sent = high ? word[i] : word[i | bit];
      const u32 got = __shfl_xor_sync(~0U, sent, bit);
      word[i] = high ? got : word[i];
      word[i | bit] = high ? word[i | bit] : got;
    }
  }
}

/// Rearranged among the four lanes that share a row: each stores 16 of 64 bytes.
template <class C>
PLAIT_DEVICE void write_shuffled(const Params& p, const OutputRows& out,
                                 const float (&o)[C::kHeadDim / 2]) {
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    const i32 row = lane / 4 + 8 * r;
    u16* to = output_row<C>(p, out, max_of(row, out.first)) + (lane & 3) * 8;
#pragma unroll
    for (i32 i = 0; i < C::kHeadDim / 8; i += 4) {
      u32 word[4];
#pragma unroll
      for (i32 j = 0; j < 4; ++j) word[j] = packed<C>(out, o, i + j, r);
      transpose_words(word);
      if (row >= out.first) {
        __stcg(reinterpret_cast<uint4*>(to + i * 8), uint4{word[0], word[1], word[2], word[3]});
      }
    }
  }
}

/// What an output needs beside its elements: the lse, and where they go if not to a narrow output.
/// Lanes 0 and 1 of the four that share two rows look after one of them each.
template <class C>
PLAIT_DEVICE void write_extras(const Params& p, OutputRows& out, const float (&o)[C::kHeadDim / 2],
                               const float (&reference)[2], const float (&sum)[2]) {
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
  const i32 own = lane & 1;
  const i32 own_row = lane / 4 + 8 * own;
  const RowHead at = row_head<C>(p, out.fused0 + max_of(own_row, out.first), out.kv_head);
  const float lse = natural_lse(own == 0 ? reference[0] : reference[1], own == 0 ? sum[0] : sum[1]);
  if ((lane & 2) == 0 && own_row >= out.first) {
    if (out.stateful) {
      __stcg(p.state_lse + out.state_row + own_row, lse);
    } else if (p.lse != nullptr) {
      p.lse[at.row * p.lse_stride_row + at.head * p.lse_stride_head] = lse;
    }
  }
  if (!is_wide(p, out)) {
    if (p.sink == nullptr) return;
    const float factor = sink_factor<DeviceMath>(lse, p.sink[at.head]);
#pragma unroll
    for (i32 r = 0; r < 2; ++r) out.scale[r] *= __shfl_sync(~0U, factor, (lane & ~3) + r);
    return;
  }
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    const i32 row = lane / 4 + 8 * r;
    if (row < out.first) continue;
    float* to;
    if (out.stateful) {
      to = p.state_o + static_cast<i64>(out.state_row + row) * C::kHeadDim;
    } else {
      const RowHead of = row_head<C>(p, out.fused0 + row, out.kv_head);
      to = static_cast<float*>(p.o) + of.row * p.o_stride_row + of.head * p.o_stride_head;
    }
#pragma unroll
    for (i32 i = 0; i < C::kHeadDim / 8; ++i) {
      __stcg(reinterpret_cast<float2*>(to + i * 8 + (lane & 3) * 2), finished(out, o, i, r));
    }
  }
}

/// Finished rows of one warpgroup, 16 per warp; `release` is called when `staging`, the queries'
/// buffer, is free (kStagedOutput).
template <class C, class Release>
PLAIT_DEVICE void write_rows(const Params& p, const Work& w, i32 kv_head,
                             float (&o)[C::kHeadDim / 2], const RowState& rows, i32 group,
                             u32 staging, Release&& release) {
  const i32 thread = fresh_thread_index();  // else rows are kept since the ranges were computed
  const i32 warp = thread / 32 & 3;
  const i32 row0 = warpgroup_row(w, group) + warp * 16;        // of this warp, in the item
  const i32 first = max_of(group * kWarpgroupRows - row0, 0);  // of the warp's 16 that counts
  if (first >= 16) {
    release();
    return;
  }
  OutputRows out{w.fused_row_begin + row0,
                 first,
                 kv_head,
                 w.state_row + (kv_head - w.head) * w.num_fused_rows + row0,
                 w.state_row >= 0,
                 {}};
  const float value_scale = v_scale(p, kv_head);
  float sum[2];
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    sum[r] = rows.sum[r];
    sum[r] += __shfl_xor_sync(~0U, sum[r], 1);
    sum[r] += __shfl_xor_sync(~0U, sum[r], 2);
    out.scale[r] = sum[r] == 0.0F ? 0.0F : value_scale * fast_reciprocal(sum[r]);
  }
  if (__any_sync(~0U, sum[0] == 0.0F || sum[1] == 0.0F)) {  // seldom: no key seen
#pragma unroll
    for (i32 i = 0; i < C::kHeadDim / 2; ++i) {
      if (sum[i / 2 & 1] == 0.0F) o[i] = 0.0F;
    }
  }
  const bool wide = is_wide(p, out);
  if (wide || p.lse != nullptr || p.sink != nullptr) {
    write_extras<C>(p, out, o, rows.reference, sum);
  }
  if (wide) {
    release();
  } else if constexpr (kStagedOutput<C>) {
    write_staged<C>(p, out, o, warp, staging, release);
  } else {
    write_shuffled<C>(p, out, o);
  }
}

#endif

}  // namespace plait::device::hopper
