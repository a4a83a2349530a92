// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Decode on sm_90a: f16 and bf16, head dims 64, 128 and 256, up to 16 fused rows per item, bound by
// reading KV once.
//
// Every warp runs its own pipeline: a ring of slots of 16 tokens (K and V), filled by bulk
// tensor copies that the warp's lane 0 starts as soon as the warp has read a slot. Warps meet once
// after their first copies and at the end of an item, so nothing but the ring's depth decides how
// much memory traffic is in flight: 8 warps x 3 slots (6 at head dim 64, 4 x 3 at 256) are 192 KiB
// per SM, where about 40 KiB cover the latency of HBM at full rate. The loading cursor crosses item
// boundaries; merging the warps' states of an item, loading the next queries and reading the plan
// all happen while copies are under way.
//
// Where an item has two heads left, each is one half of the warps', which meet among themselves.
//
// Where pages have other sizes than whole blocks, the whole warp copies a block's rows (gather.h),
// and waits for its own copies: everything else is the same.
//
// A page id outside the pool makes an out-of-range box, which the copy engine fills with NaN (the
// tensor maps ask for that): the request's output is NaN and nothing else is touched.
#pragma once

#include "cuda/kernels/hopper/decode_loader.h"
#include "cuda/kernels/hopper/decode_output.h"
#include "cuda/kernels/hopper/hooks.h"
#include "cuda/kernels/hopper/params.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

template <class C>
PLAIT_DEVICE void decode_worker(const HopperParams& hp, DecodeShared<C>& s) {
  const Params& p = hp.common;
  const TensorMap* k_map = &hp.k_map;
  const TensorMap* v_map = &hp.v_map;
  const i32 tid = static_cast<i32>(threadIdx.x);
  const i32 warp = tid / 32;
  const i32 lane = tid & 31;
  if (!C::kGather && tid == 0) {
    prefetch_tensor_map(k_map);
    prefetch_tensor_map(v_map);
  }
  const WorkerStart start = worker_start(p);
  const SliceRange slices{warp_uniform(start.first_slice), warp_uniform(start.last_slice)};
  if (slices.first >= slices.last) return;

  if constexpr (!C::kGather) {
    if (lane < C::kSlots) mbarrier_init(shared_address(&s.full[warp][lane]), 1);
    fence_mbarrier_init();
    __syncwarp();
  }
  // Every warp starts its first copies alone, and one resolves the works for all before its own:
  // once the copies of all SMs are under way, every read of the plan takes as long as they do.
  if (warp == C::kWarps - 1) s.works.fill(p, slices, lane, 32);
  DecodeLoader<C> loader(hp, s, start);
#pragma unroll 1
  for (i32 slot = 0; slot < C::kSlots; ++slot) loader.issue(k_map, v_map, slot);
  __syncthreads();
  loader.table_filled = true;

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

    const i32 end_head = w.head + w.count;
    for (i32 first_head = w.head; first_head < end_head;) {
      const HeadShare<C> share(end_head - first_head);
      const i32 kv_head = first_head + share.head(warp);
      first_head += share.heads;
      q.load(p, s, w, kv_head);
      hook.start_head(p, kv_head);
      if constexpr (C::kAlibi) {
#pragma unroll
        for (i32 r = 0; r < 2; ++r) bias.start_row(p, w, r, lane / 4 + 8 * r, kv_head);
      }
      state.clear();
      i32 block = share.first_block(warp, phase);
      phase = (phase + num_blocks) & (C::kWarps - 1);
      const bool has_blocks = block < num_blocks;
      unsigned char* parked = s.slots[warp][0];
      i32 parked_slot = -1;
      for (; block < num_blocks; block += share.warps) {
        loader.wait(slot, parity);
        const u32 data = shared_address(s.slots[warp][slot]);
        const i32 begin = slot0 + block * kBlockTokens;
        float logits[8];
        block_logits<C>(logits, s, q, data);
        if constexpr (C::kSoftCap) {
          scaled_tanh_of<8>(hook.tanh_rate(p, kv_head), [&](i32 i) -> float& { return logits[i]; });
        }
#pragma unroll
        for (float& logit : logits) logit *= hook.exponent_scale;
        if constexpr (C::kAlibi) {
          bias.template add_exactly<kBlockTokens>(logits, p, w, begin, 1.0F);
        }
        if (begin < full_begin || begin + kBlockTokens > full_end) {
          mask_block(logits, range, begin);
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
        if (block + share.warps < num_blocks) {
          loader.issue(k_map, v_map, done);
        } else {
          parked_slot = done;  // the last slot of an item holds the state until it is merged
          parked = s.slots[warp][done];
        }
      }
      park_state(s, state, warp, w.num_fused_rows, has_blocks, parked);
      share.sync(warp);
      const bool counted = counts_arrivals(p, w);
      MergeAhead first_merge;
      if (counted) first_merge = MergeAhead(p, w.merge_begin);
      const i32 rank = tid - share.first_warp(warp) * 32;
      // The fence waits for a thread's writes, those to global memory too: before them.
      write_item(p, s, w, kv_head, share, rank, [&] {
        if constexpr (!C::kGather) fence_async_shared();
        share.sync(warp);
        if (parked_slot >= 0) loader.issue(k_map, v_map, parked_slot);
      });
      if (counted) {
        share.sync(warp);
        arrive_and_merge<C>(p, w, kv_head, first_merge, s.merge_flags + (tid - rank), rank,
                            share.warps * 32, share.barrier(warp));
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
