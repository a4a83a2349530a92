// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Prefill on sm_90a: bf16, head dim 128, query tiles of 128 fused rows, bound by the tensor cores.
//
// Warpgroup 0 feeds shared memory by bulk tensor copies (one warp of it; it hands its registers to
// the others), warpgroups 1 and 2 own 64 query rows each. Two overlaps hide the exponentials:
// inside a warpgroup, Q K^T of the next tile and P V of this one run while the softmax of the next
// tile waits only for the first; between the warpgroups, named barriers let one issue its products
// while the other computes exponentials. KV tiles go from last to first, so that the masked ones
// come first and the loop that matters has no mask.
//
// Pages: one tile is copied as N / box boxes per half row of 64 dims; a box never leaves its page.
// Tokens past the item's last are fetched with page id -1, which the copy engine answers with NaN;
// logits there are masked and rows of V are made zero before use.
#pragma once

#include "cuda/kernels/device/wgmma.h"
#include "cuda/kernels/hopper/merge.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

struct PrefillConfig {
  static constexpr i32 kTileN = 128;  // tokens: 128 or 176
  static constexpr i32 kStages = 2;   // of K and of V
  static constexpr i32 kQStages = 2;
  static constexpr bool kPaged = true;  // else ragged
  static constexpr bool kPingPong = true;
};

inline constexpr i32 kWarpgroupRows = 64;
inline constexpr i32 kPrefillRows = 2 * kWarpgroupRows;
inline constexpr i32 kPrefillThreads = 384;
inline constexpr i32 kConsumerThreads = 256;
inline constexpr u32 kQHalfBytes = kWarpgroupRows * 128;
inline constexpr u32 kQBytes = 2 * kQHalfBytes;  // of one warpgroup
inline constexpr u32 kProducerRegisters = 40;
inline constexpr u32 kConsumerRegisters = 232;
inline constexpr u32 kMergeBarrier = 1;
inline constexpr u32 kTurnBarrier = 2;       // + warpgroup
inline constexpr u32 kWarpgroupBarrier = 4;  // + warpgroup

template <class C>
struct PrefillShared {
  static constexpr u32 kHalfBytes = C::kTileN * 128;  // 64 of 128 dims of a tile
  static constexpr u32 kTileBytes = 2 * kHalfBytes;
  alignas(1024) unsigned char q[C::kQStages][2][kQBytes];
  alignas(1024) unsigned char k[C::kStages][kTileBytes];
  alignas(1024) unsigned char v[C::kStages][kTileBytes];
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

/// KV tiles of an item: tile t holds slots base + t * N up.
struct TileRange {
  i32 base, count;
};
template <class C>
PLAIT_DEVICE TileRange tile_range(const Work& w, i32 box_tokens) {
  if (w.kv_end <= w.kv_begin) return {0, 0};
  const i32 base = C::kPaged ? w.kv_begin - w.kv_begin % box_tokens : w.kv_begin;
  return {base, ceil_div(w.kv_end - base, C::kTileN)};
}

// ---- producer -------------------------------------------------------------------------------

/// This lane's box of a tile: page and token in page. Lane i takes half i & 1 of box i / 2.
struct TileSource {
  i32 page, token;
};
template <class C>
PLAIT_DEVICE TileSource tile_source(const Params& p, const Work& w, i32 box_tokens, i32 tile_slot,
                                    i32 lane) {
  if (!C::kPaged) return {0, w.page_begin + tile_slot};
  const i32 slot = tile_slot + (lane >> 1) * box_tokens;
  TileSource source{-1, slot % p.page_size};
  if (slot < w.kv_end && (lane >> 1) * box_tokens < C::kTileN) {
    source.page = __ldg(p.page_ids[w.view] + w.page_begin + slot / p.page_size);
    if (static_cast<u32>(source.page) >= static_cast<u32>(p.num_pages)) {
      atomicOr(p.status, kStatusBadPage);
      source.page = -1;
    }
  }
  return source;
}

template <class C>
PLAIT_DEVICE void copy_tile(u32 dst, const TensorMap* map, u32 full, TileSource source, i32 head,
                            i32 box_tokens, i32 lane, u64 policy) {
  constexpr u32 kHalfBytes = PrefillShared<C>::kHalfBytes;
  if (lane == 0) mbarrier_arrive_expect(full, 2 * kHalfBytes);
  __syncwarp();
  if (!C::kPaged) {
    if (lane == 0) tma_load_5d(dst, map, full, 0, source.token, 0, head, 0, policy);
  } else if ((lane >> 1) * box_tokens < C::kTileN) {
    const u32 offset =
        static_cast<u32>(lane & 1) * kHalfBytes + static_cast<u32>((lane >> 1) * box_tokens) * 128;
    tma_load_5d(dst + offset, map, full, 0, source.token, lane & 1, head, source.page, policy);
  }
}

template <class C>
PLAIT_DEVICE void prefill_producer(const Params& p, const TensorMap* q_map, const TensorMap* k_map,
                                   const TensorMap* v_map, i32 box_tokens, PrefillShared<C>& s) {
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
  const SliceRange slices = worker_slices(p, static_cast<i32>(blockIdx.x));
  const u64 kv_policy = l2_evict_last_policy();
  const u64 q_policy = l2_evict_first_policy();
  Ring<C::kQStages> q_ring;
  Ring<C::kStages> k_ring, v_ring;
  for (i32 index = slices.first; index < slices.last; ++index) {
    const Work w = load_work(p, index);
    const TileRange tiles = tile_range<C>(w, box_tokens);
    for (i32 head = w.head; head < w.head + w.count; ++head) {
      mbarrier_wait(shared_address(&s.q_empty[q_ring.stage]), q_ring.parity ^ 1);
      if (lane == 0) {
        const u32 full = shared_address(&s.q_full[q_ring.stage]);
        mbarrier_arrive_expect(full, 2 * kQBytes);
#pragma unroll
        for (i32 g = 0; g < 2; ++g) {
          tma_load_5d(shared_address(s.q[q_ring.stage][g]), q_map, full, 0, 0,
                      (w.fused_row_begin + g * kWarpgroupRows) / p.group_size, 0, head, q_policy);
        }
      }
      __syncwarp();
      q_ring.advance();
      TileSource previous{-1, 0};
      // K of the next tile goes before V of this one: the order in which they are read.
      for (i32 t = tiles.count; t >= 0; --t) {
        if (t > 0) {
          const TileSource source =
              tile_source<C>(p, w, box_tokens, tiles.base + (t - 1) * C::kTileN, lane);
          mbarrier_wait(shared_address(&s.k_empty[k_ring.stage]), k_ring.parity ^ 1);
          copy_tile<C>(shared_address(s.k[k_ring.stage]), k_map,
                       shared_address(&s.k_full[k_ring.stage]), source, head, box_tokens, lane,
                       kv_policy);
          k_ring.advance();
          if (t < tiles.count) {
            mbarrier_wait(shared_address(&s.v_empty[v_ring.stage]), v_ring.parity ^ 1);
            copy_tile<C>(shared_address(s.v[v_ring.stage]), v_map,
                         shared_address(&s.v_full[v_ring.stage]), previous, head, box_tokens, lane,
                         kv_policy);
            v_ring.advance();
          }
          previous = source;
        } else if (tiles.count > 0) {
          mbarrier_wait(shared_address(&s.v_empty[v_ring.stage]), v_ring.parity ^ 1);
          copy_tile<C>(shared_address(s.v[v_ring.stage]), v_map,
                       shared_address(&s.v_full[v_ring.stage]), previous, head, box_tokens, lane,
                       kv_policy);
          v_ring.advance();
        }
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
    wgmma_rs_mn(o, probabilities[step], advance_descriptor(v_desc, step * 16 * 128),
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
    factor[r] = exp2_approx(rows.max[r] * scale_log2 - base);
    rows.max[r] = m;
    float sum = 0.0F;
#pragma unroll
    for (i32 i = 0; i < C::kTileN / 8; ++i)
#pragma unroll
      for (i32 e = 0; e < 2; ++e) {
        const float probability = exp2_approx(s[i * 4 + r * 2 + e] * scale_log2 - base);
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
  for (i32 i = thread; i < C::kTileN * 16; i += 128) {
    const i32 row = i / 16;
    if (row >= first && row < last) continue;
    store_shared_zero16(v_address + static_cast<u32>((i & 15) / 8) * PrefillShared<C>::kHalfBytes +
                        static_cast<u32>(row) * 128 + static_cast<u32>(i & 7) * 16);
  }
  fence_async_shared();
  named_barrier_sync(kWarpgroupBarrier + static_cast<u32>(group), 128);
}

/// Finished rows of one warpgroup: 16 rows per warp, through the warp's part of the query buffer.
PLAIT_DEVICE void write_rows(const Params& p, const Work& w, i32 kv_head, float (&o)[64],
                             const RowState& rows, i32 group, u32 staging) {
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
  const i32 warp = (static_cast<i32>(threadIdx.x) / 32) & 3;
  const i32 row0 = group * kWarpgroupRows + warp * 16;  // of this warp, in the item
  const i32 num_rows = min_of(16, w.num_fused_rows - row0);
  if (num_rows <= 0) return;
  const i32 fused0 = w.fused_row_begin + row0;
  const i32 state_row =
      w.state_row < 0 ? -1 : w.state_row + (kv_head - w.head) * w.num_fused_rows + row0;
  const bool wide = state_row >= 0 || p.o_is_state;
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(~0U, sum, 1);
    sum += __shfl_xor_sync(~0U, sum, 2);
    const float lse = sum == 0.0F ? neg_inf() : (rows.max[r] * p.scale_log2 + __log2f(sum)) * kLn2;
    float inv = sum == 0.0F ? 0.0F : p.v_scale / sum;
    const i32 row = lane / 4 + 8 * r;
    const i32 fused = fused0 + min_of(row, num_rows - 1);
    const i32 q_row = fused / p.group_size;
    const i32 head = kv_head * p.group_size + fused % p.group_size;
    if (!wide && p.sink != nullptr) inv *= sink_factor<FastMath>(lse, p.sink[head]);
    if (row < num_rows) {
      float* lse_out = state_row >= 0 ? p.state_lse + state_row + row
                       : p.lse == nullptr
                           ? nullptr
                           : p.lse + q_row * p.lse_stride_row + head * p.lse_stride_head;
      if ((lane & 3) == 0 && lse_out != nullptr) __stcg(lse_out, lse);
      if (wide) {
        float* out = state_row >= 0 ? p.state_o + static_cast<i64>(state_row + row) * kHeadDim
                                    : reinterpret_cast<float*>(p.o) + q_row * p.o_stride_row +
                                          head * p.o_stride_head;
#pragma unroll
        for (i32 i = 0; i < 16; ++i) {
          __stcg(reinterpret_cast<float2*>(out + i * 8 + (lane & 3) * 2),
                 float2{sum == 0.0F ? 0.0F : o[i * 4 + r * 2] * inv,
                        sum == 0.0F ? 0.0F : o[i * 4 + r * 2 + 1] * inv});
        }
      }
    }
#pragma unroll
    for (i32 i = 0; i < 16; ++i) {
      o[i * 4 + r * 2] = sum == 0.0F ? 0.0F : o[i * 4 + r * 2] * inv;
      o[i * 4 + r * 2 + 1] = sum == 0.0F ? 0.0F : o[i * 4 + r * 2 + 1] * inv;
    }
  }
  if (wide) return;
  const u32 matrix_row = static_cast<u32>(warp * 16 + (lane & 15));
#pragma unroll
  for (u32 pair = 0; pair < 8; ++pair) {
    const u32 i = pair * 8;
    stmatrix_x4(staging + (pair >> 2) * kQHalfBytes +
                    swizzle128(matrix_row, (pair & 3) * 2 + static_cast<u32>(lane >> 4)),
                pack_bf16(o[i], o[i + 1]), pack_bf16(o[i + 2], o[i + 3]),
                pack_bf16(o[i + 4], o[i + 5]), pack_bf16(o[i + 6], o[i + 7]));
  }
  __syncwarp();
#pragma unroll
  for (i32 pass = 0; pass < 8; ++pass) {
    const i32 row = pass * 2 + lane / 16;
    const u32 chunk = static_cast<u32>(lane & 15);
    const uint4 value = load_shared16(staging + (chunk >> 3) * kQHalfBytes +
                                      swizzle128(static_cast<u32>(warp * 16 + row), chunk & 7));
    if (row < num_rows) {
      const i32 fused = fused0 + row;
      const i32 q_row = fused / p.group_size;
      const i32 head = kv_head * p.group_size + fused % p.group_size;
      *reinterpret_cast<uint4*>(p.o + q_row * p.o_stride_row + head * p.o_stride_head + chunk * 8) =
          value;
    }
  }
}

template <class C>
PLAIT_DEVICE void prefill_consumer(const Params& p, i32 box_tokens, PrefillShared<C>& s) {
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
  const i32 thread = static_cast<i32>(threadIdx.x) - 128;  // among consumers
  const i32 group = __shfl_sync(~0U, thread / 128, 0);
  const i32 warp = (thread / 32) & 3;
  const SliceRange slices = worker_slices(p, static_cast<i32>(blockIdx.x));
  Ring<C::kQStages> q_ring;
  Ring<C::kStages> k_ring, v_ring;
  const u32 my_turn = kTurnBarrier + static_cast<u32>(group);
  const u32 other_turn = kTurnBarrier + static_cast<u32>(group ^ 1);
  if (C::kPingPong && group == 1) named_barrier_arrive(kTurnBarrier, kConsumerThreads);

  for (i32 index = slices.first; index < slices.last; ++index) {
    const Work w = load_work(p, index);
    const TileRange tiles = tile_range<C>(w, box_tokens);
    SlotRange range[2];
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      const i32 row =
          min_of(group * kWarpgroupRows + warp * 16 + lane / 4 + 8 * r, w.num_fused_rows - 1);
      range[r] = visible_slots(p, w, (w.fused_row_begin + row) / p.group_size);
    }
    const bool ranged = p.causal != 0 || p.window_left >= 0;
    const i32 full_begin = ranged ? w.full_begin : w.kv_begin;
    const i32 full_end = ranged ? w.full_end : w.kv_end;

    for (i32 kv_head = w.head; kv_head < w.head + w.count; ++kv_head) {
      float o[64];
      float logits[C::kTileN / 2];
      u32 probabilities[C::kTileN / 16][4];
      RowState rows{{neg_inf(), neg_inf()}, {0.0F, 0.0F}};
      float factor[2];
      mbarrier_wait(shared_address(&s.q_full[q_ring.stage]), q_ring.parity);
      const u32 q_address = shared_address(s.q[q_ring.stage][group]);
      const u64 q_desc = matrix_descriptor(q_address, 1024, 0);

      auto k_desc = [&] { return matrix_descriptor(shared_address(s.k[k_ring.stage]), 1024, 0); };
      auto v_desc = [&] {
        return matrix_descriptor(shared_address(s.v[v_ring.stage]), 1024,
                                 PrefillShared<C>::kHalfBytes);
      };
      auto release = [&](u64& barrier) {
        if (lane == 0) mbarrier_arrive(shared_address(&barrier));
      };
      auto masked = [&](i32 tile_slot) {
        return tile_slot < full_begin || tile_slot + C::kTileN > full_end;
      };
      auto prepare_v = [&](i32 tile_slot) {  // edge tiles only: waits for V and clears rows
        if (tile_slot < w.kv_begin || tile_slot + C::kTileN > w.kv_end) {
          mbarrier_wait(shared_address(&s.v_full[v_ring.stage]), v_ring.parity);
          clear_v_tile<C>(shared_address(s.v[v_ring.stage]), w.kv_begin - tile_slot,
                          w.kv_end - tile_slot, group, thread & 127);
        }
      };

      if (tiles.count > 0) {
        i32 tile_slot = tiles.base + (tiles.count - 1) * C::kTileN;
        mbarrier_wait(shared_address(&s.k_full[k_ring.stage]), k_ring.parity);
        issue_logits<C>(logits, q_desc, k_desc());
        wgmma_wait<0>();
        pin_registers(logits);
        release(s.k_empty[k_ring.stage]);
        k_ring.advance();
        if (masked(tile_slot)) mask_tile<C>(logits, range, tile_slot, lane);
        softmax_tile<C>(logits, rows, factor, p.scale_log2);
        pack_tile<C>(probabilities, logits);
        bool accumulate = false;
        if (tiles.count > 1) {
          mbarrier_wait(shared_address(&s.k_full[k_ring.stage]), k_ring.parity);
        }
#pragma unroll 1
        for (i32 t = tiles.count - 2; t >= 0; --t) {
          prepare_v(tile_slot);
          tile_slot -= C::kTileN;
          if (C::kPingPong) named_barrier_sync(my_turn, kConsumerThreads);
          issue_logits<C>(logits, q_desc, k_desc());
          mbarrier_wait(shared_address(&s.v_full[v_ring.stage]), v_ring.parity);
          issue_output<C>(o, probabilities, v_desc(), accumulate);
          accumulate = true;
          if (C::kPingPong) named_barrier_arrive(other_turn, kConsumerThreads);
          wgmma_wait<1>();
          pin_registers(logits);
          release(s.k_empty[k_ring.stage]);
          k_ring.advance();
          if (masked(tile_slot)) mask_tile<C>(logits, range, tile_slot, lane);
          softmax_tile<C>(logits, rows, factor, p.scale_log2);
          pin_registers(logits);
          // The wait for the next K is due anyway; here its branch also keeps ptxas from hoisting
          // the wait for P V above the exponentials, which it does in straight-line code.
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
        wgmma_wait<0>();
        pin_registers(o);
        release(s.v_empty[v_ring.stage]);
        v_ring.advance();
      } else {
#pragma unroll
        for (i32 i = 0; i < 64; ++i) o[i] = 0.0F;
      }
      // All warps of the group have read the queries: their buffer may take the output.
      named_barrier_sync(kWarpgroupBarrier + static_cast<u32>(group), 128);
      write_rows(p, w, kv_head, o, rows, group, q_address);
      fence_async_shared();
      __syncwarp();
      release(s.q_empty[q_ring.stage]);
      q_ring.advance();
      if (w.state_row >= 0 && w.num_merges > 0) {
        arrive_and_merge(p, w, kv_head, s.merge_flags, thread, kConsumerThreads, kMergeBarrier);
      }
    }
  }
}

template <class C>
PLAIT_DEVICE void prefill_worker(const Params& p, const TensorMap* q_map, const TensorMap* k_map,
                                 const TensorMap* v_map, i32 box_tokens, PrefillShared<C>& s) {
  const i32 tid = static_cast<i32>(threadIdx.x);
  if (tid == 0) {
    prefetch_tensor_map(q_map);
    prefetch_tensor_map(k_map);
    prefetch_tensor_map(v_map);
    constexpr u32 kConsumerWarps = kConsumerThreads / 32;
    for (i32 i = 0; i < C::kQStages; ++i) {
      mbarrier_init(shared_address(&s.q_full[i]), 1);
      mbarrier_init(shared_address(&s.q_empty[i]), kConsumerWarps);
    }
    for (i32 i = 0; i < C::kStages; ++i) {
      mbarrier_init(shared_address(&s.k_full[i]), 1);
      mbarrier_init(shared_address(&s.k_empty[i]), kConsumerWarps);
      mbarrier_init(shared_address(&s.v_full[i]), 1);
      mbarrier_init(shared_address(&s.v_empty[i]), kConsumerWarps);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (tid < 128) {
    release_registers<kProducerRegisters>();
    if (tid < 32) prefill_producer<C>(p, q_map, k_map, v_map, box_tokens, s);
  } else {
    acquire_registers<kConsumerRegisters>();
    prefill_consumer<C>(p, box_tokens, s);
  }
}

/// `box_tokens`: tokens per box of the K and V maps; divides both the page size and kTileN.
template <class C>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    prefill_kernel(const __grid_constant__ Params p, const __grid_constant__ TensorMap q_map,
                   const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
                   i32 box_tokens) {
  extern __shared__ unsigned char dynamic_shared[];
  const u32 base = shared_address(dynamic_shared);
  PrefillShared<C>& s =
      *reinterpret_cast<PrefillShared<C>*>(dynamic_shared + ((1024 - (base & 1023)) & 1023));
  prefill_worker<C>(p, &q_map, &k_map, &v_map, box_tokens, s);
}

#endif

}  // namespace plait::device::hopper
