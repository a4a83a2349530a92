// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The copies of the decode kernel: each warp's own, ahead of its arithmetic and across items.
#pragma once

#include "cuda/kernels/hopper/decode_layout.h"
#include "cuda/kernels/hopper/gather.h"
#include "cuda/kernels/hopper/params.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// Where a worker's share is at most so many tokens, 2 MiB of K and V, they are copied evict first:
/// a short read leaves the L2 to what others wrote there and need again. A long one is 1 to 3 %
/// faster if it lets all of that go (docs/perf-log.md).
template <class C>
inline constexpr i32 kShortRead = (2 << 20) / static_cast<i32>(kSlotBytes<C> / kBlockTokens);

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
  i32 slice, head;                    // head: the first of those at once
  i32 first_slot, num_blocks, phase;  // phase: blocks of all earlier items, modulo kWarps
  i32 block, stride;                  // next block of this warp in the item
  i32 taken, ids;                     // of the batch
  PendingSlot pending;                // where rows are gathered: of the next block
  const Work* w;
  bool table_filled;  // else works are resolved one by one
  u64 policy;

  PLAIT_DEVICE DecodeLoader(const HopperParams& params, DecodeShared<C>& shared,
                            const WorkerStart& start)
      : hp(params), p(params.common), s(shared), slices{start.first_slice, start.last_slice} {
    warp = static_cast<i32>(threadIdx.x) / 32;
    lane = static_cast<i32>(threadIdx.x) & 31;
    slice = slices.first;
    table_filled = false;
    policy = share_of_tokens(p) <= kShortRead<C> ? kL2EvictFirst : kL2EvictNormal;
    w = &s.works.begin(start, 1);
    head = w->head;
    phase = 0;
    ids = 0;
    start_item();
    if (block < num_blocks) {
      load_ids();
    } else {
      next_item();
    }
  }

  PLAIT_DEVICE i32 own_head() const {
    return head + (stride == C::kWarps ? 0 : HeadShare<C>::half(warp));
  }
  PLAIT_DEVICE bool done() const { return slice >= slices.last; }

  PLAIT_DEVICE void next_item() {
    do {
      phase = (phase + num_blocks) & (C::kWarps - 1);
      head += HeadShare<C>(w->head + w->count - head).heads;
      if (head >= w->head + w->count) {
        if (++slice >= slices.last) return;
        w = table_filled ? &s.works.get(p, slices, slice, 1) : &s.works.resolve(p, slice, 1);
        head = w->head;
      }
      start_item();
    } while (block >= num_blocks);
    load_ids();
  }

  PLAIT_DEVICE void start_item() {
    const BlockRange blocks = block_range<C>(*w);
    first_slot = blocks.first_slot;
    num_blocks = blocks.count;
    const HeadShare<C> share(w->head + w->count - head);
    stride = share.warps;
    block = share.first_block(warp, phase);
  }

  PLAIT_DEVICE void load_ids() {
    taken = 0;
    if constexpr (C::kGather) {
      const i32 token = lane & (kBlockTokens - 1);
      pending = PageSlots(p, *w).fetch(p, first_slot + block * kBlockTokens + token);
    } else if constexpr (C::kPaged) {
      const i32 mine = block + lane * stride;
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
        RowsInLanes{number, 0}, l, data, lane_source(p, false, own_head(), l), hp.k_rows.bytes);
    copy_rows<kBlockTokens, C::kParts, kPartBytes, kComplete>(
        RowsInLanes{number, kBlockTokens}, l, data + kBlockBytes<C>,
        lane_source(p, true, own_head(), l), hp.v_rows.bytes);
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
      page = __shfl_sync(~0U, ids, taken);
      token = (first_slot + block * kBlockTokens) % page_size<C>(p);
    } else {
      token = w->page_begin + first_slot + block * kBlockTokens;
    }
    const u32 full = shared_address(&s.full[warp][slot]);
    const u32 data = shared_address(s.slots[warp][slot]);
    if (lane == 0) {
      mbarrier_arrive_expect(full, kSlotBytes<C>);
      tma_load_5d(data, k_map, full, 0, token, 0, own_head(), page, policy);
      tma_load_5d(data + kBlockBytes<C>, v_map, full, 0, token, 0, own_head(), page, policy);
    }
    __syncwarp();
  }

  PLAIT_DEVICE void advance() {
    block += stride;
    if (block >= num_blocks) {
      next_item();
    } else if (C::kGather || ++taken == 32) {
      load_ids();
    }
  }
};

#endif

}  // namespace plait::device::hopper
