// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Partial states in global memory and their merge in the same launch: the worker whose arrival
// completes a merge's counter does the merge, in plan order, so the result never depends on who
// that is.
#pragma once

#include "core/device/state.h"
#include "cuda/kernels/device/math.h"
#include "cuda/kernels/hopper/work.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// Natural-log lse of a row whose maximum `m` and sum `l` are in base 2.
PLAIT_DEVICE float natural_lse(float m, float l) {
  return l == 0.0F ? neg_inf() : (m + fast_log2(l)) * kLn2;
}

/// Writes four consecutive finished elements of fused row `fused_row` of KV head `kv_head`.
template <class C>
PLAIT_DEVICE void write_output4(const Params& p, i32 fused_row, i32 kv_head, i32 column,
                                float4 value, float lse) {
  const RowHead at = row_head<C>(p, fused_row, kv_head);
  const i64 offset = at.row * p.o_stride_row + at.head * p.o_stride_head + column;
  if (p.write_state) {
    __stcg(reinterpret_cast<float4*>(static_cast<float*>(p.o) + offset), value);
  } else {
    const float f = p.sink == nullptr ? 1.0F : sink_factor<DeviceMath>(lse, p.sink[at.head]);
    uint2 packed;
    packed.x = pack<C>(value.x * f, value.y * f);
    packed.y = pack<C>(value.z * f, value.w * f);
    __stcg(reinterpret_cast<uint2*>(static_cast<u16*>(p.o) + offset), packed);
  }
  if (column == 0 && p.lse != nullptr) {
    p.lse[at.row * p.lse_stride_row + at.head * p.lse_stride_head] = lse;
  }
}

/// The references of a merge. Lane i of a warp holds the i-th of the first 32: read ahead, since a
/// read of the plan takes as long as one of the states.
struct MergeRefs {
  const StateRef* all = nullptr;
  i32 count = 0;
  StateRef mine{};

  MergeRefs() = default;
  PLAIT_DEVICE MergeRefs(const StateRef* refs, i32 num_refs) : all(refs), count(num_refs) {
    const i32 lane = static_cast<i32>(threadIdx.x) & 31;
    if (lane < count) mine = all[lane];
  }
};

/// One warp merges one row. States are asked for before their weights are known: what is left of
/// the latency is one read of the states.
template <class C>
PLAIT_DEVICE void merge_row(const Params& p, const MergeRefs& refs, i32 head_index,
                            i32 row_in_merge, i32 fused_row, i32 kv_head) {
  const i32 num_refs = refs.count;
  constexpr i32 kPasses = ceil_div(C::kHeadDim, 128);            // of four elements per lane
  constexpr i32 kInFlight = (C::kQTile > 16 ? 4 : 8) / kPasses;  // large tiles leave few registers
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
  i32 state_row = 0;  // lane i: of state base + i
  float state_lse = neg_inf();
  const auto load_refs = [&](i32 base) {
    state_lse = neg_inf();
    if (base + lane >= num_refs) return;
    const StateRef ref = base == 0 ? refs.mine : refs.all[base + lane];
    state_row = ref.state_row + head_index * ref.head_stride + row_in_merge;
    state_lse = __ldcg(p.state_lse + state_row);
  };
  const auto column = [&](i32 pass) { return pass * 128 + lane * 4; };
  float4 values[kInFlight][kPasses];
  const auto load_states = [&](i32 first, i32 count) {
#pragma unroll
    for (i32 i = 0; i < kInFlight; ++i) {
      const i64 row = __shfl_sync(~0U, state_row, first + i);
#pragma unroll
      for (i32 pass = 0; pass < kPasses; ++pass) {
        // Unset on some path they would be live for ptxas from the kernel's begin on, through its
        // main loop.
        values[i][pass] = float4{0.0F, 0.0F, 0.0F, 0.0F};
        if (first + i < count && column(pass) < C::kHeadDim) {
          values[i][pass] =
              __ldcg(reinterpret_cast<const float4*>(p.state_o + row * C::kHeadDim + column(pass)));
        }
      }
    }
  };
  load_refs(0);
  load_states(0, num_refs);
  float best = state_lse;
  for (i32 base = 32; base < num_refs; base += 32) {
    load_refs(base);
    best = fmaxf(best, state_lse);
  }
  if (num_refs > 32) load_refs(0);
#pragma unroll
  for (i32 d = 16; d > 0; d >>= 1) best = fmaxf(best, __shfl_xor_sync(~0U, best, d));
  const float base_lse = merge_base(best);

  float4 sum[kPasses] = {};
  float total = 0.0F;
  for (i32 base = 0; base < num_refs; base += 32) {
    if (base > 0) load_refs(base);
    const float weight = merge_weight<DeviceMath>(state_lse, base_lse);
    const i32 count = min_of(32, num_refs - base);
    for (i32 first = 0; first < count; first += kInFlight) {
      if (base + first > 0) load_states(first, count);
#pragma unroll
      for (i32 i = 0; i < kInFlight; ++i) {
        const float w = __shfl_sync(~0U, weight, first + i);
        if (first + i >= count) continue;
        total += w;
        if (w == 0.0F) continue;  // an empty state may hold anything; NaN weights pass
#pragma unroll
        for (i32 pass = 0; pass < kPasses; ++pass) {
          // Spelled out: whichever kernel merges gives the same bits.
          sum[pass].x = __fmaf_rn(w, values[i][pass].x, sum[pass].x);
          sum[pass].y = __fmaf_rn(w, values[i][pass].y, sum[pass].y);
          sum[pass].z = __fmaf_rn(w, values[i][pass].z, sum[pass].z);
          sum[pass].w = __fmaf_rn(w, values[i][pass].w, sum[pass].w);
        }
      }
    }
  }
  const auto [inv, lse] = merge_result<DeviceMath>(base_lse, total);
#pragma unroll
  for (i32 pass = 0; pass < kPasses; ++pass) {
    if (column(pass) >= C::kHeadDim) continue;
    const float4& o = sum[pass];
    write_output4<C>(p, fused_row, kv_head, column(pass),
                     float4{o.x * inv, o.y * inv, o.z * inv, o.w * inv}, lse);
  }
}

/// All merges of the group, dealt to the warps of the grid: a launch of its own, for plans that
/// would leave much to few last arrivers.
template <class C>
PLAIT_DEVICE void merge_all(const Params& p) {
  const GroupHeader& g = group_header(p);
  const Merge* merges = reinterpret_cast<const Merge*>(p.plan + g.merge_offset);
  const StateRef* refs = reinterpret_cast<const StateRef*>(p.plan + g.ref_offset);
  const i32 warps = static_cast<i32>(gridDim.x * (blockDim.x / 32));
  const i32 slices = max_of(1, warps / max_of(1, g.num_counters));  // of the rows of a counter
  i32 unit = static_cast<i32>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  for (; unit < g.num_counters * slices; unit += warps) {
    const i32 counter = unit / slices;
    const Merge& merge = merges[counter / merges->head_count];
    const i32 head = counter % merges->head_count;
    for (i32 row = unit % slices; row < merge.num_fused_rows; row += slices) {
      merge_row<C>(p, MergeRefs(refs + merge.ref_begin, merge.num_refs), head, row,
                   merge.fused_row_begin + row, merge.head_begin + head);
    }
  }
}

/// Whether a state that was just written has to be counted, and merged by the last to arrive.
PLAIT_DEVICE bool counts_arrivals(const Params& p, const Work& w) {
  return w.state_row >= 0 && w.num_merges > 0 && p.merge_role == kMergeInPlace;
}

/// A merge as a warp reads it ahead of its arrival.
struct MergeAhead {
  Merge merge{};
  MergeRefs refs;

  MergeAhead() = default;
  PLAIT_DEVICE MergeAhead(const Params& p, i32 index) {
    const GroupHeader& g = group_header(p);
    merge = reinterpret_cast<const Merge*>(p.plan + g.merge_offset)[index];
    refs = MergeRefs(reinterpret_cast<const StateRef*>(p.plan + g.ref_offset) + merge.ref_begin,
                     merge.num_refs);
  }
};

/// Called by `threads` threads (ranks 0 .. threads - 1) that share named barrier `barrier`, after
/// they wrote the partial states of (work, KV head `kv_head`) and met at that barrier. `first`: the
/// item's first merge. `flags` is shared memory, i32[threads].
template <class C>
PLAIT_DEVICE void arrive_and_merge(const Params& p, const Work& w, i32 kv_head,
                                   const MergeAhead& first, i32* flags, i32 rank, i32 threads,
                                   u32 barrier) {
  const Merge* merges =
      reinterpret_cast<const Merge*>(p.plan + group_header(p).merge_offset) + w.merge_begin;
  for (i32 base = 0; base < w.num_merges; base += threads) {
    if (base + rank < w.num_merges) {
      const Merge merge = base + rank == 0 ? first.merge : merges[base + rank];
      u32* counter = p.counters + merge.counter_begin + (kv_head - merge.head_begin);
      // Releases what all threads wrote before the barrier, and acquires what others released.
      const u32 arrived = atomic_add_acq_rel(counter, 1U) + 1;
      const bool last = arrived == static_cast<u32>(merge.num_refs);
      if (last) *counter = 0;
      flags[rank] = last;
    }
    named_barrier_sync(barrier, static_cast<u32>(threads));
    const i32 count = min_of(threads, w.num_merges - base);
    const i32 warps = threads / 32;
    i32 turn = rank / 32;  // rows of all merges are dealt to the warps in turn
    for (i32 i = 0; i < count; ++i) {
      if (!flags[i]) continue;
      MergeAhead ahead = first;
      if (base + i > 0) ahead = MergeAhead(p, w.merge_begin + base + i);
      const Merge& merge = ahead.merge;
      for (i32 row = turn; row < merge.num_fused_rows; row += warps) {
        merge_row<C>(p, ahead.refs, kv_head - merge.head_begin, row, merge.fused_row_begin + row,
                     kv_head);
      }
      turn = (turn + warps - merge.num_fused_rows % warps) % warps;
    }
    named_barrier_sync(barrier, static_cast<u32>(threads));
  }
}

#endif

}  // namespace plait::device::hopper
