// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Prefill on sm_90a: f16 and bf16, head dims 64, 128 and 256, query tiles of 128 fused rows, bound
// by the tensor cores.
//
// Warpgroup 0 feeds shared memory by bulk tensor copies (three warps of it: two for K, one for V;
// it hands its registers to the others), warpgroups 1 and 2 own 64 query rows each. Two overlaps
// hide the exponentials: inside a warpgroup, Q K^T of the next tile and P V of this one run while
// the softmax of the next tile waits only for the first; between the warpgroups, named barriers let
// one issue its products while the other computes exponentials. KV tiles go from last to first, so
// that the masked ones come first and the loop that matters has no mask.
//
// A row of q, k or v is 1, 2 or 4 parts of 64 elements, each of which is a row of a swizzled box.
//
// Pages: a box never leaves its page, so a tile is kTileN / kBox boxes of V and, for each part, as
// many of K, whose rows wgmma wants at one stride through the whole tile. Starting a copy costs the
// issuing warp tens of cycles, hence several warps. Tokens past the item's last are fetched with
// page id -1, which the copy engine answers with NaN; logits there are masked and rows of V are
// made zero before use. Pages that boxes do not fit are gathered row by row: prefill_gather.h.
#pragma once

#include "cuda/kernels/device/wgmma.h"
#include "cuda/kernels/hopper/hooks.h"
#include "cuda/kernels/hopper/prefill_gather.h"

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
                               const RowShift& shift) {
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    float m = C::kAlibi ? exponent(top[r], -shift.value[r]) : exponent(top[r]);
    m = fmaxf(m, __shfl_xor_sync(~0U, m, 1));
    m = fmaxf(m, __shfl_xor_sync(~0U, m, 2));
    m = fmaxf(m, rows.max[r]);
    const float reference = m == neg_inf() ? 0.0F : m;
    const float base = C::kAlibi ? __fsub_rn(reference, shift.value[r]) : reference;
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
    if constexpr (C::kAlibi) {
      // reference - shift = base + lost, exactly; every exponential lacks the same.
      const float back = __fsub_rn(base, reference);
      const float lost =
          __fsub_rn(__fsub_rn(reference, __fsub_rn(base, back)), __fadd_rn(shift.value[r], back));
      sum = __fmaf_rn(sum, kLn2 * (shift.rest[r] - lost), sum);
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

/// Makes rows of V outside the item zero. Both warpgroups do it to the whole tile, each for itself.
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

/// Whether finished rows are rearranged in the queries' buffer. Queries that have only one leave it
/// as soon as the last logits are there, or the next ones would come late.
template <class C>
inline constexpr bool kStagedOutput = C::kQStages > 1;

/// The 16 rows of a warp, `first` of them and later ones for the output, and what this thread's two
/// are multiplied by.
struct OutputRows {
  i32 fused0, first, kv_head;
  bool empty[2];  // no key seen
  float scale[2];
};
/// Two neighbouring finished elements of row `r`, of columns 8 * block + 2 * (lane % 4) and next.
template <i32 kCount>
PLAIT_DEVICE float2 finished(const OutputRows& out, const float (&o)[kCount], i32 block, i32 r) {
  if (out.empty[r]) return float2{0.0F, 0.0F};
  return float2{o[block * 4 + r * 2] * out.scale[r], o[block * 4 + r * 2 + 1] * out.scale[r]};
}
template <class C, i32 kCount>
PLAIT_DEVICE u32 packed(const OutputRows& out, const float (&o)[kCount], i32 block, i32 r) {
  const float2 value = finished(out, o, block, r);
  return pack<C>(value.x, value.y);
}
template <class C>
PLAIT_DEVICE uint4* output_row(const Params& p, const OutputRows& out, i32 row) {
  const RowHead at = row_head<C>(p, out.fused0 + row, out.kv_head);
  return reinterpret_cast<uint4*>(static_cast<u16*>(p.o) + at.row * p.o_stride_row +
                                  at.head * p.o_stride_head);
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
#pragma unroll
  for (i32 pass = 0; pass < 16 / kRows; ++pass) {
    const i32 row = pass * kRows + lane / kChunks;
    // As an intrinsic: a plain assignment of a uint4 becomes four stores of 4 bytes.
    if (row >= out.first) __stcg(output_row<C>(p, out, row) + chunk, values[pass]);
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
    uint4* to = output_row<C>(p, out, max_of(row, out.first)) + (lane & 3);
#pragma unroll
    for (i32 i = 0; i < C::kHeadDim / 8; i += 4) {
      u32 word[4];
#pragma unroll
      for (i32 j = 0; j < 4; ++j) word[j] = packed<C>(out, o, i + j, r);
      transpose_words(word);
      if (row >= out.first) __stcg(to + i, uint4{word[0], word[1], word[2], word[3]});
    }
  }
}

/// Finished rows of one warpgroup, 16 per warp; `release` is called when `staging`, the queries'
/// buffer, is free (kStagedOutput).
template <class C, class Release>
PLAIT_DEVICE void write_rows(const Params& p, const Work& w, i32 kv_head,
                             const float (&o)[C::kHeadDim / 2], const RowState& rows, i32 group,
                             u32 staging, Release&& release) {
  const i32 thread = fresh_thread_index();  // else rows are kept since the ranges were computed
  const i32 lane = thread & 31;
  const i32 warp = thread / 32 & 3;
  const i32 row0 = warpgroup_row(w, group) + warp * 16;        // of this warp, in the item
  const i32 first = max_of(group * kWarpgroupRows - row0, 0);  // of the warp's 16 that counts
  if (first >= 16) {
    release();
    return;
  }
  OutputRows out{w.fused_row_begin + row0, first, kv_head, {}, {}};
  const i32 state_row = w.state_row < 0 ? -1 : w.state_row + (kv_head - w.head) * w.num_fused_rows;
  const bool wide = state_row >= 0 || p.write_state != 0;
#pragma unroll
  for (i32 r = 0; r < 2; ++r) {
    float sum = rows.sum[r];
    sum += __shfl_xor_sync(~0U, sum, 1);
    sum += __shfl_xor_sync(~0U, sum, 2);
    const float lse = sum == 0.0F ? neg_inf() : (rows.max[r] + fast_log2(sum)) * kLn2;
    out.empty[r] = sum == 0.0F;
    out.scale[r] = v_scale(p, kv_head) / sum;
    const i32 row = lane / 4 + 8 * r;
    const RowHead at = row_head<C>(p, out.fused0 + max_of(row, first), kv_head);
    if (!wide && p.sink != nullptr) out.scale[r] *= sink_factor<DeviceMath>(lse, p.sink[at.head]);
    if (row < first) continue;
    if ((lane & 3) == 0) {
      if (state_row >= 0) {
        __stcg(p.state_lse + state_row + row0 + row, lse);
      } else if (p.lse != nullptr) {
        p.lse[at.row * p.lse_stride_row + at.head * p.lse_stride_head] = lse;
      }
    }
    if (wide) {
      float* to =
          state_row >= 0
              ? p.state_o + static_cast<i64>(state_row + row0 + row) * C::kHeadDim
              : static_cast<float*>(p.o) + at.row * p.o_stride_row + at.head * p.o_stride_head;
#pragma unroll
      for (i32 i = 0; i < C::kHeadDim / 8; ++i) {
        __stcg(reinterpret_cast<float2*>(to + i * 8 + (lane & 3) * 2), finished(out, o, i, r));
      }
    }
  }
  if (wide) {
    release();
  } else if constexpr (kStagedOutput<C>) {
    write_staged<C>(p, out, o, warp, staging, release);
  } else {
    write_shuffled<C>(p, out, o);
  }
}

/// Waits for a tile of K or V. Gathered ones need a fence: prefill_gather.h.
template <class C>
PLAIT_DEVICE void wait_full(u64 (&full)[C::kStages], const Ring<C::kStages>& ring) {
  mbarrier_wait(shared_address(&full[ring.stage]), ring.parity);
  if constexpr (C::kGather) fence_async_shared();
}

template <class C>
PLAIT_DEVICE void prefill_consumer(const Params& p, PrefillShared<C>& s) {
  constexpr bool kRanged = C::kCausal || C::kWindow;
  // Of the thread nothing but its warpgroup stays in a register.
  const i32 group = warp_uniform(static_cast<i32>(threadIdx.x) / 128 - 1);
  auto lane = [] { return fresh_thread_index() & 31; };
  auto last_slice = [&] { return warp_uniform(s.slices.last); };
  Ring<C::kQStages> q_ring;
  Ring<C::kStages> k_ring, v_ring;
  const u32 my_turn = kTurnBarrier + static_cast<u32>(group);
  const u32 other_turn = kTurnBarrier + static_cast<u32>(group ^ 1);
  if (group == 1) named_barrier_arrive(kTurnBarrier, kConsumerThreads);

  // Anew for every item: with one buffer its 16 descriptors would live in registers all the time.
  u32 q_address;
  auto find_queries = [&] {
    q_address =
        static_cast<u32>(warp_uniform(static_cast<i32>(shared_address(s.q[q_ring.stage][group]))));
  };
  auto q_desc = [&] { return matrix_descriptor(q_address, 1024, 0); };
  auto k_desc = [&] { return matrix_descriptor(shared_address(s.k[k_ring.stage]), 1024, 0); };
  auto v_desc = [&] {
    return matrix_descriptor(shared_address(s.v[v_ring.stage]), 1024, C::kBox * 128);
  };
  auto release = [&](u64& barrier) {
    if (lane() == 0) mbarrier_arrive(shared_address(&barrier));
  };

  LogitsHook<C> hook;
  RowBias<C> bias;
  float logits[C::kTileN / 2];
  u32 probabilities[C::kTileN / 16][4];
  float o[C::kHeadDim / 2];
  i32 index = warp_uniform(s.slices.first);
  i32 head = warp_uniform(s.works.get(p, s.slices, index).head);
  mbarrier_wait(shared_address(&s.q_full[q_ring.stage]), q_ring.parity);
  wait_full<C>(s.k_full, k_ring);
  find_queries();
  issue_logits<C>(logits, q_desc(), k_desc());
  wgmma_wait<0>();
  pin_registers(logits);
#pragma unroll 1
  while (index < last_slice()) {  // the first product of the item is ready
    const Work& w = s.works.get(p, s.slices, index);
    const TileRange tiles = tile_range<C>(w);
    const i32 full_begin = warp_uniform(kRanged ? w.full_begin : w.kv_begin);
    const i32 full_end = warp_uniform(kRanged ? w.full_end : w.kv_end);
    auto is_full = [&](i32 tile_slot) {
      return tile_slot >= full_begin && tile_slot + C::kTileN <= full_end;
    };
    hook.start_head(p, head);
    SlotRange range[2];
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      const i32 warp = static_cast<i32>(threadIdx.x) / 32 & 3;
      const i32 row =
          w.fused_row_begin + max_of(warpgroup_row(w, group) + warp * 16 + lane() / 4 + 8 * r, 0);
      range[r] = visible_slots<C>(p, w, row / group_size<C>(p));
      if constexpr (C::kAlibi) bias.start_row(p, w, r, row, head, hook.exponent_scale);
    }
    RowState rows{{neg_inf(), neg_inf()}, {0.0F, 0.0F}};
    float factor[2];
    auto to_probabilities = [&](i32 tile_slot) {
      const bool full = is_full(tile_slot);
      float top[2];
      if constexpr (C::kSoftCap && !C::kAlibi) {
        // Most logits are small beside their cap, which then is part of the exponent.
        row_maxima<C>(top, logits);
        const float far = hook.farthest(logits, fmaxf(top[0], top[1]));
        const auto capped = [&](const auto& exponent) {
          if (__any_sync(~0U, !(far <= exponent.limit()))) return false;  // NaN, too
          if (!full) {
            mask_tile<C>(logits, range, tile_slot, lane());
            row_maxima<C>(top, logits);
          }
          softmax_tile<C>(logits, top, rows, factor, exponent, RowShift{});
          return true;
        };
        if (capped(hook.three_terms) || capped(hook.five_terms)) return;
        const float rate = hook.tanh_rate(p, head);
#pragma unroll
        for (float& x : logits) x = scaled_tanh(__fmul_rn(x, rate));
      } else if constexpr (C::kSoftCap) {
        scaled_tanh_of<C::kTileN / 2>(hook.tanh_rate(p, head),
                                      [&](i32 i) -> float& { return logits[i]; });
      }
      RowShift shift{};
      if constexpr (C::kAlibi) {
        shift = bias.template add<C::kTileN>(logits, p, w, tile_slot, hook.exponent_scale);
      }
      if (!full) mask_tile<C>(logits, range, tile_slot, lane());
      row_maxima<C>(top, logits);
      softmax_tile<C>(logits, top, rows, factor, ScaledExponent{hook.exponent_scale}, shift);
    };
    auto prepare_v = [&](i32 tile_slot) {  // edge tiles only: waits for V and clears rows
      if constexpr (C::kGather) return;    // its rows outside the item are zeros
      if (is_full(tile_slot)) return;
      const i32 first = warp_uniform(w.kv_begin) - tile_slot;
      const i32 last = warp_uniform(w.kv_end) - tile_slot;
      if (first <= 0 && last >= C::kTileN) return;
      wait_full<C>(s.v_full, v_ring);
      clear_v_tile<C>(shared_address(s.v[v_ring.stage]), first, last, group,
                      fresh_thread_index() & 127);
    };

    i32 tile_slot = tiles.base + (tiles.count - 1) * C::kTileN;
    release(s.k_empty[k_ring.stage]);
    k_ring.advance();
    if (!kStagedOutput<C> && tiles.count == 1) release(s.q_empty[0]);
    to_probabilities(tile_slot);
    pack_tile<C>(probabilities, logits);
    // Zeros, and not a first product that does not add: what the last item left in these registers
    // would live while states are merged.
#pragma unroll
    for (float& x : o) x = 0.0F;
    if (tiles.count > 1) {
      wait_full<C>(s.k_full, k_ring);
    }
#pragma unroll 1
    for (i32 t = tiles.count - 2; t >= 0; --t) {
      prepare_v(tile_slot);
      tile_slot -= C::kTileN;
      named_barrier_sync(my_turn, kConsumerThreads);
      issue_logits<C>(logits, q_desc(), k_desc());
      wait_full<C>(s.v_full, v_ring);
      // A product holds the warp until those before it are nearly done. With a soft cap the search
      // for large logits runs between them: P V waits for the logits after its first steps.
      constexpr u32 kSteps = C::kTileN / 16;
      constexpr u32 kFirstSteps = C::kSoftCap ? 2 : kSteps;
      issue_output<C, 0, kFirstSteps>(o, probabilities, v_desc());
      if constexpr (kFirstSteps == kSteps) named_barrier_arrive(other_turn, kConsumerThreads);
      wgmma_wait<1>();
      pin_registers(logits);
      release(s.k_empty[k_ring.stage]);
      k_ring.advance();
      if constexpr (kFirstSteps < kSteps) {
        issue_output<C, kFirstSteps, kSteps>(o, probabilities, v_desc());
        named_barrier_arrive(other_turn, kConsumerThreads);
      }
      if (!kStagedOutput<C> && t == 0) release(s.q_empty[0]);
      to_probabilities(tile_slot);
      pin_registers(logits);
      // The wait for the next K is due anyway; here its branch also keeps ptxas from hoisting the
      // wait for P V above the exponentials, which it does in straight-line code.
      if (t > 0) wait_full<C>(s.k_full, k_ring);
      wgmma_wait<0>();
      pin_registers(o);
      release(s.v_empty[v_ring.stage]);
      v_ring.advance();
      // Maxima soon are final, with ALiBi at once. In the plain kernel the choice costs more than
      // it spares.
      if (!(C::kSoftCap || C::kAlibi) || __any_sync(~0U, factor[0] != 1.0F || factor[1] != 1.0F)) {
        rescale(o, factor);
      }
      pack_tile<C>(probabilities, logits);
    }
    prepare_v(tile_slot);
    wait_full<C>(s.v_full, v_ring);
    issue_output<C>(o, probabilities, v_desc());

    // The next item's first product runs while this one's output is written. After the last item it
    // is a product of whatever lies there, which nobody reads: a condition would make the compiler
    // wait.
    const u32 staging = shared_address(s.q[q_ring.stage][group]);
    u64& q_empty = s.q_empty[q_ring.stage];
    const i32 this_head = head;
    if (++head >= warp_uniform(w.head + w.count) && ++index < last_slice()) {
      head = warp_uniform(s.works.get(p, s.slices, index).head);
    }
    q_ring.advance();
    find_queries();
    if (index < last_slice()) {
      mbarrier_wait(shared_address(&s.q_full[q_ring.stage]), q_ring.parity);
      wait_full<C>(s.k_full, k_ring);
    }
    issue_logits<C>(logits, q_desc(), k_desc());
    wgmma_wait<1>();
    pin_registers(o);
    release(s.v_empty[v_ring.stage]);
    v_ring.advance();
    if constexpr (kStagedOutput<C>) {
      // All warps of the group have read the queries: their buffer may take the output.
      named_barrier_sync(kWarpgroupBarrier + static_cast<u32>(group), 128);
    }
    write_rows<C>(p, w, this_head, o, rows, group, staging, [&] {
      if constexpr (kStagedOutput<C>) {
        fence_async_shared();
        __syncwarp();
        release(q_empty);
      }
    });
    wgmma_wait<0>();
    pin_registers(logits);
    if (counts_arrivals(p, w)) {
      arrive_and_merge<C>(p, w, this_head, s.merge_flags, fresh_thread_index() - 128,
                          kConsumerThreads, kMergeBarrier);
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
    if constexpr (!C::kGather) {
      prefetch_tensor_map(&p.k_map);
      prefetch_tensor_map(&p.v_map);
    }
    s.slices = slices;
    constexpr u32 kConsumerWarps = kConsumerThreads / 32;
    for (i32 i = 0; i < C::kQStages; ++i) {
      mbarrier_init(shared_address(&s.q_full[i]), 1);
      mbarrier_init(shared_address(&s.q_empty[i]), kConsumerWarps);
    }
    for (i32 i = 0; i < C::kStages; ++i) {
      mbarrier_init(shared_address(&s.k_full[i]), kFillArrivals<C, false>);
      mbarrier_init(shared_address(&s.k_empty[i]), kConsumerWarps);
      mbarrier_init(shared_address(&s.v_full[i]), kFillArrivals<C, true>);
      mbarrier_init(shared_address(&s.v_empty[i]), kConsumerWarps);
    }
    fence_mbarrier_init();
  }
  s.works.fill(p.common, slices);
  __syncthreads();
  if (tid < 128) {
    release_registers<kProducerRegisters<C>>();
    if constexpr (C::kGather) {
      prefill_gather<C>(p, s);
    } else {
      prefill_producer<C>(p, s);
    }
  } else {
    acquire_registers<kConsumerRegisters<C>>();
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
