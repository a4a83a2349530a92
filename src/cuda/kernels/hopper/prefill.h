// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Prefill on sm_90a: bf16, head dim 128, query tiles of 128 fused rows, bound by the tensor cores.
//
// Warpgroup 0 feeds shared memory by bulk tensor copies (three warps of it: one per half of K, one
// for V; it hands its registers to the others), warpgroups 1 and 2 own 64 query rows each. Two
// overlaps hide the exponentials: inside a warpgroup, Q K^T of the next tile and P V of this one
// run while the softmax of the next tile waits only for the first; between the warpgroups, named
// barriers let one issue its products while the other computes exponentials. KV tiles go from last
// to first, so that the masked ones come first and the loop that matters has no mask.
//
// Pages: a box never leaves its page, so a tile is kTileN / kBox boxes of V and twice as many of K,
// whose rows wgmma wants at one stride through the whole tile. Starting a copy costs the issuing
// warp tens of cycles, hence several warps. Tokens past the item's last are fetched with page id
// -1, which the copy engine answers with NaN; logits there are masked and rows of V are made zero
// before use.
#pragma once

#include "cuda/kernels/device/wgmma.h"
#include "cuda/kernels/hopper/hooks.h"
#include "cuda/kernels/hopper/params.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// A config C has: i32 kTileN (tokens: 128), kBox (tokens per box of the K and V maps:
// divides kTileN and the page size; kTileN if ragged), kStages (of K and of V), kQStages,
// kGroupSize, kPageSize (0: read at run time); bool kPingPong, kPaged, kCausal, kWindow, kSoftCap,
// kAlibi.

inline constexpr i32 kWarpgroupRows = 64;
inline constexpr i32 kPrefillRows = 2 * kWarpgroupRows;
inline constexpr i32 kPrefillThreads = 384;
inline constexpr i32 kConsumerThreads = 256;
inline constexpr u32 kQHalfBytes = kWarpgroupRows * 128;
inline constexpr u32 kQBytes = 2 * kQHalfBytes;  // of one warpgroup
inline constexpr u32 kProducerRegisters = 56;
inline constexpr u32 kConsumerRegisters = 224;
inline constexpr u32 kMergeBarrier = 1;
inline constexpr u32 kTurnBarrier = 2;       // + warpgroup
inline constexpr u32 kWarpgroupBarrier = 4;  // + warpgroup
inline constexpr i32 kPrefillCachedWorks = 64;

template <class C>
struct PrefillShared {
  static constexpr u32 kHalfBytes = C::kTileN * 128;  // 64 of 128 dims of a tile
  static constexpr u32 kTileBytes = 2 * kHalfBytes;
  alignas(1024) unsigned char q[C::kQStages][2][kQBytes];
  alignas(1024) unsigned char k[C::kStages][kTileBytes];  // [half of dim][token][64]
  alignas(1024) unsigned char v[C::kStages][kTileBytes];  // [box][half of dim][token in box][64]
  WorkTable<kPrefillCachedWorks, kPrefillThreads / 32> works;
  i32 merge_flags[kConsumerThreads];
  alignas(8) u64 q_full[C::kQStages];
  u64 q_empty[C::kQStages];
  u64 k_full[C::kStages];
  u64 k_empty[C::kStages];
  u64 v_full[C::kStages];
  u64 v_empty[C::kStages];
};

/// Position in a ring of `kCount` stages.
template <i32 kCount>
struct Ring {
  i32 stage = 0;
  u32 parity = 0;
  PLAIT_DEVICE void advance() {
    if (++stage == kCount) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// KV tiles of an item: tile t holds slots base + t * N up. An item without keys has one tile, all
/// of it masked: the loops need no other case.
struct TileRange {
  i32 base, count;
};
template <class C>
PLAIT_DEVICE TileRange tile_range(const Work& w) {
  if constexpr (C::kPaged) {
    const i32 base = w.kv_begin - w.kv_begin % C::kBox;
    const i32 count = max_of(ceil_div(w.kv_end - base, C::kTileN), 1);
    return {warp_uniform(base), warp_uniform(count)};
  } else {
    // Aligned to the item's end, so that no copy reads past it: a captured launch does not know
    // how many tokens a later plan's tensor has.
    const i32 count = max_of(ceil_div(w.kv_end - w.kv_begin, C::kTileN), 1);
    return {warp_uniform(w.kv_end - count * C::kTileN), warp_uniform(count)};
  }
}

/// First row, in the item, of a warpgroup's 64: moved back so that they end with the item's rows at
/// the latest. A copy then never reads past the queries of a later plan; rows before the
/// warpgroup's own (of the tile, or of whatever lies before it) are computed and dropped.
PLAIT_DEVICE i32 warpgroup_row(const Work& w, i32 group) {
  return min_of((group + 1) * kWarpgroupRows, w.num_fused_rows) - kWarpgroupRows;
}

// ---- producers ------------------------------------------------------------------------------

/// Where a lane's box of a tile lies: lane i copies box i.
struct BoxSource {
  i32 page, token;
};
template <class C>
PLAIT_DEVICE BoxSource box_source(const Params& p, const Work& w, i32 tile_slot, i32 lane) {
  if constexpr (C::kPaged) {
    const i32 slot = tile_slot + lane * C::kBox;
    BoxSource source{-1, slot % page_size<C>(p)};
    if (slot < w.kv_end && lane < C::kTileN / C::kBox) {
      source.page = load_page_id(p, w, slot / page_size<C>(p));
    }
    return source;
  } else {
    return {0, w.page_begin + tile_slot};
  }
}

/// K is one box per tile where a tile is contiguous, else its halves are copied apart.
template <class C>
inline constexpr bool kWholeK = C::kBox == C::kTileN;

/// Producer warp 0 copies Q and the first half of K (or all of it), warp 1 copies V, warp 2 the
/// second half of K: all tiles of all items, in the order in which they are read. One code path for
/// the three: registers are scarce here.
template <class C>
PLAIT_DEVICE void prefill_producer(const HopperParams& hp, PrefillShared<C>& s) {
  constexpr u32 kHalfBytes = PrefillShared<C>::kHalfBytes;
  constexpr i32 kBoxes = C::kTileN / C::kBox;
  const Params& p = hp.common;
  const i32 warp = static_cast<i32>(threadIdx.x) / 32;
  if (warp > (kWholeK<C> ? 1 : 2)) return;
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
  const bool is_v = warp == 1;
  const bool both = is_v || kWholeK<C>;
  const i32 half = warp == 2 ? 1 : 0;
  const u32 bytes = both ? 2 * kHalfBytes : kHalfBytes;
  const TensorMap* map = is_v ? &hp.v_map : &hp.k_map;
  const u32 data = shared_address(is_v ? s.v[0] : s.k[0]) + static_cast<u32>(half) * kHalfBytes +
                   static_cast<u32>(lane * C::kBox) * (both ? 256U : 128U);
  const u32 full = shared_address(is_v ? s.v_full : s.k_full);
  const u32 empty = shared_address(is_v ? s.v_empty : s.k_empty);
  const SliceRange slices = worker_slices(p, static_cast<i32>(blockIdx.x));
  Ring<C::kQStages> q_ring;
  Ring<C::kStages> ring;
  for (i32 index = slices.first; index < slices.last; ++index) {
    const Work& w = s.works.get(p, slices, index);
    const TileRange tiles = tile_range<C>(w);
    const i32 head_begin = warp_uniform(w.head);
    const i32 head_end = head_begin + warp_uniform(w.count);
    for (i32 head = head_begin; head < head_end; ++head) {
      if (warp == 0) {
        mbarrier_wait(shared_address(&s.q_empty[q_ring.stage]), q_ring.parity ^ 1);
        if (lane < 2) {
          const u32 q_full = shared_address(&s.q_full[q_ring.stage]);
          if (lane == 0) mbarrier_arrive_expect(q_full, 2 * kQBytes);
          const i32 row = (w.fused_row_begin + warpgroup_row(w, lane)) / group_size<C>(p);
          tma_load_5d(shared_address(s.q[q_ring.stage][lane]), &hp.q_map, q_full, 0, 0, row, 0,
                      head, kL2EvictFirst);
        }
        __syncwarp();
        q_ring.advance();
      }
      i32 tile_slot = tiles.base + (tiles.count - 1) * C::kTileN;
      BoxSource next = box_source<C>(p, w, tile_slot, lane);
      for (i32 t = tiles.count; t > 0; --t) {
        const BoxSource source = next;
        tile_slot -= C::kTileN;
        if (t > 1) next = box_source<C>(p, w, tile_slot, lane);  // its latency hides in the wait
        const u32 stage = static_cast<u32>(ring.stage);
        mbarrier_wait(empty + stage * 8, ring.parity ^ 1);
        if (lane == 0) mbarrier_arrive_expect(full + stage * 8, bytes);
        __syncwarp();
        if (lane < kBoxes) {
          tma_load_5d(data + stage * (2 * kHalfBytes), map, full + stage * 8, 0, source.token, half,
                      head, source.page, kL2EvictLast);
        }
        __syncwarp();
        ring.advance();
      }
    }
  }
}

// ---- consumers ------------------------------------------------------------------------------

/// Softmax state of a thread's two rows, in units of unscaled logits.
struct RowState {
  float max[2];
  float sum[2];  // this thread's columns only
};

/// s = Q K^T over one tile: issues and commits.
template <class C>
PLAIT_DEVICE void issue_logits(float (&s)[C::kTileN / 2], u64 q_desc, u64 k_desc) {
  pin_registers(s);
  wgmma_fence();
#pragma unroll
  for (u32 step = 0; step < 8; ++step) {
    wgmma_ss_k(
        s, advance_descriptor(q_desc, (step >> 2) * kQHalfBytes + (step & 3) * 32),
        advance_descriptor(k_desc, (step >> 2) * PrefillShared<C>::kHalfBytes + (step & 3) * 32),
        step != 0);
  }
  wgmma_commit();
}

/// o (+)= P V over one tile: issues and commits.
template <class C>
PLAIT_DEVICE void issue_output(float (&o)[64], const u32 (&probabilities)[C::kTileN / 16][4],
                               u64 v_desc, bool accumulate) {
  pin_registers(o);
  wgmma_fence();
#pragma unroll
  for (u32 step = 0; step < C::kTileN / 16; ++step) {
    constexpr u32 kBox = C::kBox;
    const u32 offset = step * 16 / kBox * (kBox * 256) + step * 16 % kBox * 128;
    wgmma_rs_mn(o, probabilities[step], advance_descriptor(v_desc, offset),
                accumulate || step != 0);
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

template <class C>
PLAIT_DEVICE void hook_tile(float (&s)[C::kTileN / 2], const typename LogitsHook<C>::Tile& hook) {
  if constexpr (LogitsHook<C>::kActive) {
#pragma unroll
    for (i32 i = 0; i < C::kTileN / 2; ++i) s[i] = hook.apply(s[i]);
  }
}

/// Turns logits into probabilities in place; `factor` rescales what was accumulated before.
template <class C>
PLAIT_DEVICE void softmax_tile(float (&s)[C::kTileN / 2], RowState& rows, float (&factor)[2],
                               float scale_log2) {
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    float m = fmaxf(s[r * 2], s[r * 2 + 1]);
#pragma unroll
    for (i32 i = 1; i < C::kTileN / 8; ++i) {
      m = fmaxf(m, fmaxf(s[i * 4 + r * 2], s[i * 4 + r * 2 + 1]));
    }
    m = fmaxf(m, __shfl_xor_sync(~0U, m, 1));
    m = fmaxf(m, __shfl_xor_sync(~0U, m, 2));
    m = fmaxf(m, rows.max[r]);
    const float base = m == neg_inf() ? 0.0F : m * scale_log2;
    factor[r] = fast_exp2(rows.max[r] * scale_log2 - base);
    rows.max[r] = m;
    float sum = 0.0F;
#pragma unroll
    for (i32 i = 0; i < C::kTileN / 8; ++i)
#pragma unroll
      for (i32 e = 0; e < 2; ++e) {
        const float probability = fast_exp2(s[i * 4 + r * 2 + e] * scale_log2 - base);
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
      probabilities[i][e] = pack_bf16(s[i * 8 + e * 2], s[i * 8 + e * 2 + 1]);
    }
}

PLAIT_DEVICE void rescale(float (&o)[64], const float (&factor)[2]) {
#pragma unroll
  for (i32 i = 0; i < 64; ++i) o[i] *= factor[(i >> 1) & 1];
}

/// Makes rows of V outside the item zero. Both warpgroups do it to the whole tile, each for itself.
template <class C>
PLAIT_DEVICE void clear_v_tile(u32 v_address, i32 first, i32 last, i32 group, i32 thread) {
  constexpr u32 kBox = C::kBox;
  for (i32 i = thread; i < C::kTileN * 16; i += 128) {
    const i32 row = i / 16;
    if (row >= first && row < last) continue;
    const u32 r = static_cast<u32>(row);
    store_shared_zero16(v_address + r / kBox * (kBox * 256) +
                        static_cast<u32>((i & 15) / 8) * (kBox * 128) + r % kBox * 128 +
                        static_cast<u32>(i & 7) * 16);
  }
  fence_async_shared();
  named_barrier_sync(kWarpgroupBarrier + static_cast<u32>(group), 128);
}

/// Finished rows of one warpgroup, 16 per warp; `release` is called when the query buffer, through
/// which they are rearranged, is free.
template <class C, class Release>
PLAIT_DEVICE void write_rows(const Params& p, const Work& w, i32 kv_head, float (&o)[64],
                             const RowState& rows, float exponent_scale, i32 group, u32 staging,
                             Release&& release) {
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
  const i32 warp = (static_cast<i32>(threadIdx.x) / 32) & 3;
  const i32 row0 = warpgroup_row(w, group) + warp * 16;        // of this warp, in the item
  const i32 first = max_of(group * kWarpgroupRows - row0, 0);  // of the warp's 16 that counts
  if (first >= 16) {
    release();
    return;
  }
  const i32 fused0 = w.fused_row_begin + row0;
  const i32 state_row = w.state_row < 0 ? -1 : w.state_row + (kv_head - w.head) * w.num_fused_rows;
  const bool wide = state_row >= 0 || p.write_state != 0;
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(~0U, sum, 1);
    sum += __shfl_xor_sync(~0U, sum, 2);
    const float lse =
        sum == 0.0F ? neg_inf() : (rows.max[r] * exponent_scale + fast_log2(sum)) * kLn2;
    float inv = sum == 0.0F ? 0.0F : v_scale(p, kv_head) / sum;
    const i32 row = lane / 4 + 8 * r;
    const RowHead at = row_head<C>(p, fused0 + max_of(row, first), kv_head);
    if (!wide && p.sink != nullptr) inv *= sink_factor<DeviceMath>(lse, p.sink[at.head]);
    if (row >= first && (lane & 3) == 0) {
      if (state_row >= 0) {
        __stcg(p.state_lse + state_row + row0 + row, lse);
      } else if (p.lse != nullptr) {
        p.lse[at.row * p.lse_stride_row + at.head * p.lse_stride_head] = lse;
      }
    }
#pragma unroll
    for (i32 i = 0; i < 16; ++i) {
      o[i * 4 + r * 2] = sum == 0.0F ? 0.0F : o[i * 4 + r * 2] * inv;
      o[i * 4 + r * 2 + 1] = sum == 0.0F ? 0.0F : o[i * 4 + r * 2 + 1] * inv;
    }
    if (wide && row >= first) {
      float* out = state_row >= 0 ? p.state_o + static_cast<i64>(state_row + row0 + row) * kHeadDim
                                  : static_cast<float*>(p.o) + at.row * p.o_stride_row +
                                        at.head * p.o_stride_head;
#pragma unroll
      for (i32 i = 0; i < 16; ++i) {
        __stcg(reinterpret_cast<float2*>(out + i * 8 + (lane & 3) * 2),
               float2{o[i * 4 + r * 2], o[i * 4 + r * 2 + 1]});
      }
    }
  }
  if (wide) {
    release();
    return;
  }
  const u32 matrix_row = static_cast<u32>(warp * 16 + (lane & 15));
#pragma unroll
  for (u32 pair = 0; pair < 8; ++pair) {
    const u32 i = pair * 8;
    store_matrices(staging + (pair >> 2) * kQHalfBytes +
                       swizzle128(matrix_row, (pair & 3) * 2 + static_cast<u32>(lane >> 4)),
                   pack_bf16(o[i], o[i + 1]), pack_bf16(o[i + 2], o[i + 3]),
                   pack_bf16(o[i + 4], o[i + 5]), pack_bf16(o[i + 6], o[i + 7]));
  }
  __syncwarp();
  uint4 values[8];
  const u32 chunk = static_cast<u32>(lane & 15);
#pragma unroll
  for (i32 pass = 0; pass < 8; ++pass) {
    const u32 row = static_cast<u32>(warp * 16 + pass * 2 + lane / 16);
    values[pass] = load_shared16(staging + (chunk >> 3) * kQHalfBytes + swizzle128(row, chunk & 7));
  }
  release();
#pragma unroll
  for (i32 pass = 0; pass < 8; ++pass) {
    const i32 row = pass * 2 + lane / 16;
    if (row >= first) {
      const RowHead at = row_head<C>(p, fused0 + row, kv_head);
      // As an intrinsic: a plain assignment of a uint4 becomes four stores of 4 bytes.
      __stcg(reinterpret_cast<uint4*>(static_cast<u16*>(p.o) + at.row * p.o_stride_row +
                                      at.head * p.o_stride_head + chunk * 8),
             values[pass]);
    }
  }
}

template <class C>
PLAIT_DEVICE void prefill_consumer(const Params& p, PrefillShared<C>& s) {
  constexpr bool kRanged = C::kCausal || C::kWindow;
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
  const i32 thread = static_cast<i32>(threadIdx.x) - 128;  // among consumers
  const i32 group = warp_uniform(thread / 128);
  const i32 warp = (thread / 32) & 3;
  const SliceRange slices = worker_slices(p, static_cast<i32>(blockIdx.x));
  Ring<C::kQStages> q_ring;
  Ring<C::kStages> k_ring, v_ring;
  const u32 my_turn = kTurnBarrier + static_cast<u32>(group);
  const u32 other_turn = kTurnBarrier + static_cast<u32>(group ^ 1);
  if (group == 1) named_barrier_arrive(kTurnBarrier, kConsumerThreads);

  auto q_desc = [&] {
    return matrix_descriptor(shared_address(s.q[q_ring.stage][group]), 1024, 0);
  };
  auto k_desc = [&] { return matrix_descriptor(shared_address(s.k[k_ring.stage]), 1024, 0); };
  auto v_desc = [&] {
    return matrix_descriptor(shared_address(s.v[v_ring.stage]), 1024, C::kBox * 128);
  };
  auto release = [&](u64& barrier) {
    if (lane == 0) mbarrier_arrive(shared_address(&barrier));
  };

  LogitsHook<C> hook;
  float logits[C::kTileN / 2];
  u32 probabilities[C::kTileN / 16][4];
  float o[64];
  i32 index = slices.first;
  i32 head = warp_uniform(s.works.get(p, slices, index).head);
  mbarrier_wait(shared_address(&s.q_full[q_ring.stage]), q_ring.parity);
  mbarrier_wait(shared_address(&s.k_full[k_ring.stage]), k_ring.parity);
  issue_logits<C>(logits, q_desc(), k_desc());
  wgmma_wait<0>();
  pin_registers(logits);
#pragma unroll 1
  while (index < slices.last) {  // the first product of the item is ready
    const Work& w = s.works.get(p, slices, index);
    const TileRange tiles = tile_range<C>(w);
    const i32 kv_begin = warp_uniform(w.kv_begin);
    const i32 kv_end = warp_uniform(w.kv_end);
    const i32 full_begin = kRanged ? warp_uniform(w.full_begin) : kv_begin;
    const i32 full_end = kRanged ? warp_uniform(w.full_end) : kv_end;
    SlotRange range[2];
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      const i32 row = max_of(warpgroup_row(w, group) + warp * 16 + lane / 4 + 8 * r, 0);
      range[r] = visible_slots<C>(p, w, (w.fused_row_begin + row) / group_size<C>(p));
    }
    hook.start_head(p, head);
    RowState rows{{neg_inf(), neg_inf()}, {0.0F, 0.0F}};
    float factor[2];
    auto to_probabilities = [&](i32 tile_slot) {
      hook_tile<C>(logits, hook.start_tile(p, head));
      if (tile_slot < full_begin || tile_slot + C::kTileN > full_end) {
        mask_tile<C>(logits, range, tile_slot, lane);
      }
      softmax_tile<C>(logits, rows, factor, hook.exponent_scale);
    };
    auto prepare_v = [&](i32 tile_slot) {  // edge tiles only: waits for V and clears rows
      if (tile_slot < kv_begin || tile_slot + C::kTileN > kv_end) {
        mbarrier_wait(shared_address(&s.v_full[v_ring.stage]), v_ring.parity);
        clear_v_tile<C>(shared_address(s.v[v_ring.stage]), kv_begin - tile_slot, kv_end - tile_slot,
                        group, thread & 127);
      }
    };

    i32 tile_slot = tiles.base + (tiles.count - 1) * C::kTileN;
    release(s.k_empty[k_ring.stage]);
    k_ring.advance();
    to_probabilities(tile_slot);
    pack_tile<C>(probabilities, logits);
    bool accumulate = false;
    if (tiles.count > 1) {
      mbarrier_wait(shared_address(&s.k_full[k_ring.stage]), k_ring.parity);
    }
#pragma unroll 1
    for (i32 t = tiles.count - 2; t >= 0; --t) {
      prepare_v(tile_slot);
      tile_slot -= C::kTileN;
      named_barrier_sync(my_turn, kConsumerThreads);
      issue_logits<C>(logits, q_desc(), k_desc());
      mbarrier_wait(shared_address(&s.v_full[v_ring.stage]), v_ring.parity);
      issue_output<C>(o, probabilities, v_desc(), accumulate);
      accumulate = true;
      named_barrier_arrive(other_turn, kConsumerThreads);
      wgmma_wait<1>();
      pin_registers(logits);
      release(s.k_empty[k_ring.stage]);
      k_ring.advance();
      to_probabilities(tile_slot);
      pin_registers(logits);
      // The wait for the next K is due anyway; here its branch also keeps ptxas from hoisting the
      // wait for P V above the exponentials, which it does in straight-line code.
      if (t > 0) mbarrier_wait(shared_address(&s.k_full[k_ring.stage]), k_ring.parity);
      wgmma_wait<0>();
      pin_registers(o);
      release(s.v_empty[v_ring.stage]);
      v_ring.advance();
      rescale(o, factor);
      pack_tile<C>(probabilities, logits);
    }
    prepare_v(tile_slot);
    mbarrier_wait(shared_address(&s.v_full[v_ring.stage]), v_ring.parity);
    issue_output<C>(o, probabilities, v_desc(), accumulate);

    // The next item's first product runs while this one's output is written. After the last item it
    // is a product of whatever lies there, which nobody reads: a condition would make the compiler
    // wait.
    const u32 staging = shared_address(s.q[q_ring.stage][group]);
    u64& q_empty = s.q_empty[q_ring.stage];
    const i32 this_head = head;
    if (++head >= warp_uniform(w.head + w.count) && ++index < slices.last) {
      head = warp_uniform(s.works.get(p, slices, index).head);
    }
    q_ring.advance();
    if (index < slices.last) {
      mbarrier_wait(shared_address(&s.q_full[q_ring.stage]), q_ring.parity);
      mbarrier_wait(shared_address(&s.k_full[k_ring.stage]), k_ring.parity);
    }
    issue_logits<C>(logits, q_desc(), k_desc());
    wgmma_wait<1>();
    pin_registers(o);
    release(s.v_empty[v_ring.stage]);
    v_ring.advance();
    // All warps of the group have read the queries: their buffer may take the output.
    named_barrier_sync(kWarpgroupBarrier + static_cast<u32>(group), 128);
    write_rows<C>(p, w, this_head, o, rows, hook.exponent_scale, group, staging, [&] {
      fence_async_shared();
      __syncwarp();
      release(q_empty);
    });
    wgmma_wait<0>();
    pin_registers(logits);
    if (counts_arrivals(p, w)) {
      arrive_and_merge<C>(p, w, this_head, s.merge_flags, thread, kConsumerThreads, kMergeBarrier);
    }
  }
}

template <class C>
PLAIT_DEVICE void prefill_worker(const HopperParams& p, PrefillShared<C>& s) {
  const i32 tid = static_cast<i32>(threadIdx.x);
  const SliceRange slices = worker_slices(p.common, static_cast<i32>(blockIdx.x));
  if (slices.first >= slices.last) return;
  if (tid == 0) {
    prefetch_tensor_map(&p.q_map);
    prefetch_tensor_map(&p.k_map);
    prefetch_tensor_map(&p.v_map);
    constexpr u32 kConsumerWarps = kConsumerThreads / 32;
    for (i32 i = 0; i < C::kQStages; ++i) {
      mbarrier_init(shared_address(&s.q_full[i]), 1);
      mbarrier_init(shared_address(&s.q_empty[i]), kConsumerWarps);
    }
    for (i32 i = 0; i < C::kStages; ++i) {
      mbarrier_init(shared_address(&s.k_full[i]), kWholeK<C> ? 1 : 2);
      mbarrier_init(shared_address(&s.k_empty[i]), kConsumerWarps);
      mbarrier_init(shared_address(&s.v_full[i]), 1);
      mbarrier_init(shared_address(&s.v_empty[i]), kConsumerWarps);
    }
    fence_mbarrier_init();
  }
  s.works.fill(p.common, slices);
  __syncthreads();
  if (tid < 128) {
    release_registers<kProducerRegisters>();
    prefill_producer<C>(p, s);
  } else {
    acquire_registers<kConsumerRegisters>();
    prefill_consumer<C>(p.common, s);
  }
}

template <class C>
PLAIT_DEVICE void prefill_entry(const HopperParams& p) {
  extern __shared__ unsigned char dynamic_shared[];
  const u32 base = shared_address(dynamic_shared);
  auto& shared = *reinterpret_cast<PrefillShared<C>*>(dynamic_shared + (-base & 1023));
  if constexpr (C::kMeasured) record_worker_begin(p.common);
  allow_next_grid();
  prefetch_plan(p.common);
  prefill_worker<C>(p, shared);
  if constexpr (C::kMeasured) record_worker_end(p.common);
  wait_for_previous_grid();
}

/// Dynamic shared memory of a launch: the struct at the next multiple of its alignment.
template <class C>
inline constexpr u32 kPrefillSharedBytes = sizeof(PrefillShared<C>) + 1024;

#endif

}  // namespace plait::device::hopper
