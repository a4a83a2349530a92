// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Decode on sm_90a: f16 and bf16, head dims 64, 128 and 256, up to 16 fused rows per item, bound by
// reading KV once.
//
// Every warp runs its own pipeline: a ring of slots of 16 tokens (K and V), filled by bulk
// tensor copies that the warp's lane 0 starts as soon as the warp has read a slot. Warps meet only
// at the end of an item, so nothing but the ring's depth decides how much memory traffic is in
// flight: 8 warps x 3 slots (6 at head dim 64, 4 x 3 at 256) are 192 KiB per SM, where about 40 KiB
// cover the latency of HBM at full rate. The loading cursor crosses item boundaries; merging an
// item's eight warp states, loading the next queries and reading the plan all happen while copies
// are under way.
//
// Where pages have other sizes than whole blocks, the whole warp copies a block's rows (gather.h),
// and waits for its own copies: everything else is the same.
//
// A page id outside the pool makes an out-of-range box, which the copy engine fills with NaN (the
// tensor maps ask for that): the request's output is NaN and nothing else is touched.
#pragma once

#include "cuda/kernels/hopper/config.h"
#include "cuda/kernels/hopper/gather.h"
#include "cuda/kernels/hopper/hooks.h"
#include "cuda/kernels/hopper/params.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// A config C has: DTypeCode kElement; i32 kHeadDim, kParts (of 64 dims), kWarps (a power of two),
// kSlots (per warp), kGroupSize, kPageSize (0: read at run time); bool kPaged, kCausal, kWindow,
// kSoftCap, kAlibi, kMeasured.

inline constexpr i32 kBlockTokens = kDecodeBlockTokens;
inline constexpr u32 kPartBytes = kBlockTokens * 128;  // 64 dims of a block
template <class C>
inline constexpr u32 kBlockBytes = C::kParts* kPartBytes;  // of K or of V
template <class C>
inline constexpr u32 kSlotBytes = 2 * kBlockBytes<C>;
inline constexpr i32 kDecodeRows = 16;
inline constexpr i32 kCachedWorks = 32;

/// Queries that registers have no room for beside the output: [part of dim][row][64], swizzled.
template <class C>
inline constexpr bool kSharedQueries = C::kHeadDim > 128;
template <class C, bool kShared = kSharedQueries<C>>
struct QueryBuffer {};
template <class C>
struct QueryBuffer<C, true> {
  alignas(1024) unsigned char queries[C::kParts * kDecodeRows * 128];
};

template <class C>
struct DecodeShared : QueryBuffer<C> {
  alignas(1024) unsigned char slots[C::kWarps][C::kSlots][kSlotBytes<C>];
  WorkTable<kCachedWorks, C::kWarps, 2> works;  // read by the warp's loader, and as it computes
  float stat_max[C::kWarps][kDecodeRows];       // base 2; -inf: the warp saw no key
  float stat_sum[C::kWarps][kDecodeRows];
  u32 state_address[C::kWarps];  // where the warp parked its output state
  i32 merge_flags[C::kWarps * 32];
  alignas(8) u64 full[C::kWarps][C::kSlots];
};

/// Blocks of an item: block b holds slots first_slot + 16 b up. Ragged ones are aligned to the
/// item's end, so that no copy reads past it: a captured launch does not know how many tokens a
/// later plan's tensor has.
struct BlockRange {
  i32 first_slot, count;
};
template <class C>
PLAIT_DEVICE BlockRange block_range(const Work& w) {
  if (w.kv_end <= w.kv_begin) return {0, 0};
  if constexpr (C::kGather) {
    return {w.kv_begin, ceil_div(w.kv_end - w.kv_begin, kBlockTokens)};
  } else if constexpr (C::kPaged) {
    const i32 first_slot = w.kv_begin / kBlockTokens * kBlockTokens;
    return {first_slot, ceil_div(w.kv_end - first_slot, kBlockTokens)};
  } else {
    const i32 count = ceil_div(w.kv_end - w.kv_begin, kBlockTokens);
    return {w.kv_end - count * kBlockTokens, count};
  }
}

/// Walks this warp's blocks of all the worker's items in order, one batch of up to 32 page ids at a
/// time (lane i holds the id of the i-th block of the batch; where rows are gathered, lanes i and
/// i + 16 look after token i of the next block).
template <class C>
struct DecodeLoader {
  const HopperParams& hp;
  const Params& p;
  DecodeShared<C>& s;
  SliceRange slices;
  i32 warp, lane;
  i32 slice, head;
  i32 first_slot, num_blocks, phase;  // phase: blocks of all earlier items, modulo kWarps
  i32 block;                          // next block of this warp in the item
  i32 batch_begin, ids;
  PendingSlot pending;  // where rows are gathered: of the next block
  const Work* w;

  PLAIT_DEVICE DecodeLoader(const HopperParams& params, DecodeShared<C>& shared, SliceRange range)
      : hp(params), p(params.common), s(shared), slices(range) {
    warp = static_cast<i32>(threadIdx.x) / 32;
    lane = static_cast<i32>(threadIdx.x) & 31;
    slice = range.first - 1;
    w = s.works.works;  // any with a last head
    head = 0x7FFFFFFE;
    first_slot = 0;
    num_blocks = 0;
    phase = 0;
    block = 0;
    batch_begin = 0;
    ids = 0;
    next_item();
  }

  PLAIT_DEVICE bool done() const { return slice >= slices.last; }

  PLAIT_DEVICE void next_item() {
    do {
      phase = (phase + num_blocks) & (C::kWarps - 1);
      if (++head >= w->head + w->count) {
        if (++slice >= slices.last) return;
        w = &s.works.get(p, slices, slice, 1);
        head = w->head;
      }
      const BlockRange blocks = block_range<C>(*w);
      first_slot = blocks.first_slot;
      num_blocks = blocks.count;
      block = (warp - phase) & (C::kWarps - 1);
    } while (block >= num_blocks);
    load_ids();
  }

  PLAIT_DEVICE void load_ids() {
    batch_begin = block;
    if constexpr (C::kGather) {
      const i32 token = lane & (kBlockTokens - 1);
      pending = PageSlots(p, *w).fetch(p, first_slot + block * kBlockTokens + token);
    } else if constexpr (C::kPaged) {
      const i32 mine = block + lane * C::kWarps;
      ids = 0;
      if (mine < num_blocks) {
        ids = load_page_id(p, *w, (first_slot + mine * kBlockTokens) / page_size<C>(p));
      }
    }
  }

  /// The lower half of the warp looks after rows of K, the upper after those of V.
  PLAIT_DEVICE void gather(i32 slot) {
    const u32 l = static_cast<u32>(lane);
    check_slot(p, *w, pending);
    const u32 number = row_number(lane < kBlockTokens ? hp.k_rows : hp.v_rows, pending);
    const u32 data = shared_address(s.slots[warp][slot]);
    if (!__any_sync(~0U, number > kMaxRowNumber)) {
      copy_block<true>(data, number);
      return;
    }
    copy_block<false>(data, number);
    if (!__any_sync(~0U, number == kBadRow)) return;
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();
    poison_rows<kBlockTokens, C::kParts, kPartBytes>(RowsInLanes{number, 0}, l, data);
    poison_rows<kBlockTokens, C::kParts, kPartBytes>(RowsInLanes{number, kBlockTokens}, l,
                                                     data + kBlockBytes<C>);
  }
  template <bool kComplete>
  PLAIT_DEVICE void copy_block(u32 data, u32 number) const {
    const u32 l = static_cast<u32>(lane);
    copy_rows<kBlockTokens, C::kParts, kPartBytes, kComplete>(
        RowsInLanes{number, 0}, l, data, lane_source(p, false, head, l), hp.k_rows.bytes);
    copy_rows<kBlockTokens, C::kParts, kPartBytes, kComplete>(
        RowsInLanes{number, kBlockTokens}, l, data + kBlockBytes<C>, lane_source(p, true, head, l),
        hp.v_rows.bytes);
  }

  /// Waits for the oldest block under way, in `slot`.
  PLAIT_DEVICE void wait(i32 slot, u32 parity) const {
    if constexpr (C::kGather) {
      copy_async_wait<C::kSlots - 1>();  // a group per call of issue, copies or not
      __syncwarp();
    } else {
      mbarrier_wait(shared_address(&s.full[warp][slot]), parity);
    }
  }

  /// Starts the copy of the next block into `slot`; nothing if no block is left.
  PLAIT_DEVICE void issue(const TensorMap* k_map, const TensorMap* v_map, i32 slot) {
    if (!done()) {
      if constexpr (C::kGather) {
        gather(slot);
      } else {
        copy_boxes(k_map, v_map, slot);
      }
      advance();
    }
    if constexpr (C::kGather) copy_async_commit();
  }

  PLAIT_DEVICE void copy_boxes(const TensorMap* k_map, const TensorMap* v_map, i32 slot) {
    i32 token = 0;
    i32 page = 0;
    if constexpr (C::kPaged) {
      page = __shfl_sync(~0U, ids, (block - batch_begin) / C::kWarps);
      token = (first_slot + block * kBlockTokens) % page_size<C>(p);
    } else {
      token = w->page_begin + first_slot + block * kBlockTokens;
    }
    const u32 full = shared_address(&s.full[warp][slot]);
    const u32 data = shared_address(s.slots[warp][slot]);
    if (lane == 0) {
      mbarrier_arrive_expect(full, kSlotBytes<C>);
      tma_load_5d(data, k_map, full, 0, token, 0, head, page, kL2EvictFirst);
      tma_load_5d(data + kBlockBytes<C>, v_map, full, 0, token, 0, head, page, kL2EvictFirst);
    }
    __syncwarp();
  }

  PLAIT_DEVICE void advance() {
    block += C::kWarps;
    if (block >= num_blocks) {
      next_item();
    } else if (C::kGather || block - batch_begin >= 32 * C::kWarps) {
      load_ids();
    }
  }
};

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
      named_barrier_sync(1, C::kWarps * 32);
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
  if (lane == 0) s.state_address[warp] = shared_address(slot);
}

/// Merges the warps' parked states of one item, in warp order, and writes them out.
template <class C>
PLAIT_DEVICE void write_item(const Params& p, DecodeShared<C>& s, const Work& w, i32 kv_head) {
  const i32 tid = static_cast<i32>(threadIdx.x);
  const i32 state_row = w.state_row < 0 ? -1 : w.state_row + (kv_head - w.head) * w.num_fused_rows;
  constexpr i32 kQuads = C::kHeadDim / 4;
  for (i32 index = tid; index < w.num_fused_rows * kQuads; index += C::kWarps * 32) {
    const i32 row = index / kQuads;
    const i32 quad = index % kQuads;
    float best = neg_inf();
#pragma unroll
    for (i32 i = 0; i < C::kWarps; ++i) best = fmaxf(best, s.stat_max[i][row]);
    const float base = best == neg_inf() ? 0.0F : best;
    float4 sum{0.0F, 0.0F, 0.0F, 0.0F};
    float total = 0.0F;
#pragma unroll
    for (i32 i = 0; i < C::kWarps; ++i) {
      const float l = s.stat_sum[i][row];
      if (l == 0.0F) continue;  // no key seen; a NaN sum goes on
      const float weight = fast_exp2(s.stat_max[i][row] - base);
      const uint4 raw = load_shared16(
          s.state_address[i] +
          parked_index<C>(static_cast<u32>(row), static_cast<u32>(quad) * 2) * sizeof(float2));
      total += weight * l;
      sum.x += weight * __uint_as_float(raw.x);
      sum.y += weight * __uint_as_float(raw.y);
      sum.z += weight * __uint_as_float(raw.z);
      sum.w += weight * __uint_as_float(raw.w);
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

template <class C>
PLAIT_DEVICE void decode_worker(const HopperParams& hp, DecodeShared<C>& s) {
  const Params& p = hp.common;
  const TensorMap* k_map = &hp.k_map;
  const TensorMap* v_map = &hp.v_map;
  const i32 tid = static_cast<i32>(threadIdx.x);
  const i32 warp = tid / 32;
  const i32 lane = tid & 31;
  const SliceRange slices = worker_slices(p, static_cast<i32>(blockIdx.x));
  if (slices.first >= slices.last) return;

  s.works.fill(p, slices);
  if constexpr (!C::kGather) {
    if (lane < C::kSlots) mbarrier_init(shared_address(&s.full[warp][lane]), 1);
    if (tid == 0) {
      prefetch_tensor_map(k_map);
      prefetch_tensor_map(v_map);
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  DecodeLoader<C> loader(hp, s, slices);
#pragma unroll 1
  for (i32 slot = 0; slot < C::kSlots; ++slot) loader.issue(k_map, v_map, slot);

  i32 slot = 0;
  u32 parity = 0;
  i32 phase = 0;
  DecodeState<C> state;
  LogitsHook<C> hook;
  RowBias<C> bias;
  Queries<C> q;
  for (i32 index = slices.first; index < slices.last; ++index) {
    const Work& w = s.works.get(p, slices, index);
    const BlockRange blocks = block_range<C>(w);
    const i32 num_blocks = blocks.count;
    const i32 slot0 = blocks.first_slot;
    constexpr bool ranged = C::kCausal || C::kWindow;
    SlotRange range[2];
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      const i32 row = min_of(lane / 4 + 8 * r, w.num_fused_rows - 1);
      range[r] = visible_slots<C>(p, w, (w.fused_row_begin + row) / group_size<C>(p));
    }
    const i32 full_begin = ranged ? w.full_begin : w.kv_begin;
    const i32 full_end = ranged ? w.full_end : w.kv_end;

    for (i32 kv_head = w.head; kv_head < w.head + w.count; ++kv_head) {
      q.load(p, s, w, kv_head);
      hook.start_head(p, kv_head);
      if constexpr (C::kAlibi) {
#pragma unroll
        for (i32 r = 0; r < 2; ++r) {
          const i32 row = w.fused_row_begin + min_of(lane / 4 + 8 * r, w.num_fused_rows - 1);
          bias.start_row(p, w, r, row, kv_head, hook.exponent_scale);
        }
      }
      state.clear();
      i32 block = (warp - phase) & (C::kWarps - 1);
      phase = (phase + num_blocks) & (C::kWarps - 1);
      const bool has_blocks = block < num_blocks;
      unsigned char* parked = s.slots[warp][0];
      i32 parked_slot = -1;
      for (; block < num_blocks; block += C::kWarps) {
        loader.wait(slot, parity);
        const u32 data = shared_address(s.slots[warp][slot]);
        const i32 begin = slot0 + block * kBlockTokens;
        float logits[8];
        block_logits<C>(logits, s, q, data);
        if constexpr (C::kSoftCap) {
          scaled_tanh_of<8>(hook.tanh_rate(p, kv_head), [&](i32 i) -> float& { return logits[i]; });
        }
        RowShift shift{};
        if constexpr (C::kAlibi) {
          shift = bias.template add<kBlockTokens>(logits, p, w, begin, hook.exponent_scale);
        }
#pragma unroll
        for (i32 i = 0; i < 8; ++i) {
          logits[i] = logits[i] * hook.exponent_scale + shift.value[(i >> 1) & 1];
        }
        if (begin < full_begin || begin + kBlockTokens > full_end) {
#pragma unroll
          for (i32 i = 0; i < 8; ++i) {
            const i32 at = begin + i / 4 * 8 + (lane & 3) * 2 + (i & 1);
            const SlotRange& seen = range[(i >> 1) & 1];
            if (at < seen.begin || at >= seen.end) logits[i] = neg_inf();
          }
          if (!C::kGather && (begin < w.kv_begin || begin + kBlockTokens > w.kv_end)) {
            clear_v_rows<C>(data + kBlockBytes<C>, w.kv_begin - begin, w.kv_end - begin);
            fence_async_shared();
          }
        }
        block_update<C>(state, logits, data + kBlockBytes<C>);
        __syncwarp();
        const i32 done = slot;
        if (++slot == C::kSlots) {
          slot = 0;
          parity ^= 1;
        }
        if (block + C::kWarps < num_blocks) {
          loader.issue(k_map, v_map, done);
        } else {
          parked_slot = done;  // the last slot of an item holds the state until it is merged
          parked = s.slots[warp][done];
        }
      }
      park_state(s, state, warp, w.num_fused_rows, has_blocks, parked);
      named_barrier_sync(1, C::kWarps * 32);
      write_item(p, s, w, kv_head);
      if constexpr (!C::kGather) fence_async_shared();
      named_barrier_sync(1, C::kWarps * 32);
      if (parked_slot >= 0) loader.issue(k_map, v_map, parked_slot);
      if (counts_arrivals(p, w)) {
        arrive_and_merge<C>(p, w, kv_head, s.merge_flags, tid, C::kWarps * 32, 1);
      }
    }
  }
}

template <class C>
PLAIT_DEVICE void decode_entry(const HopperParams& p) {
  if (p.common.merge_role == kMergeOnly) {
    allow_next_grid();
    prefetch_plan(p.common);
    wait_for_previous_grid();
    merge_all<C>(p.common);
    return;
  }
  extern __shared__ unsigned char dynamic_shared[];
  const u32 base = shared_address(dynamic_shared);
  auto& shared = *reinterpret_cast<DecodeShared<C>*>(dynamic_shared + (-base & 1023));
  if constexpr (C::kMeasured) record_worker_begin(p.common);
  allow_next_grid();
  prefetch_plan(p.common);
  decode_worker<C>(p, shared);
  if constexpr (C::kMeasured) record_worker_end(p.common);
  wait_for_previous_grid();
}

/// Dynamic shared memory of a launch: the struct at the next multiple of its alignment.
template <class C>
inline constexpr u32 kDecodeSharedBytes = sizeof(DecodeShared<C>) + 1024;

#endif

}  // namespace plait::device::hopper
