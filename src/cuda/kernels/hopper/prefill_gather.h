// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The warps that feed the prefill kernel where pages have any size: each of the four copies a
// quarter of the rows of every tile, K of a tile and then V of the one before, which is what
// becomes free and is needed next. Warp 0 copies the queries as well.
//
// cp.async writes shared memory through the generic proxy, wgmma reads it through the async proxy,
// and a proxy fence has to stand between them on the path of causality (PTX ISA, memory consistency
// model, causality order). A thread's copies arrive at `full` by themselves when they have landed,
// and who waits for that phase sees them (PTX ISA, mbarrier.try_wait: copies requested prior to
// cp.async.mbarrier.arrive are made visible to the waiting thread), through the generic proxy. So
// each thread of the consumers fences after its wait, before its products. The other direction,
// wgmma's reads before the copies that overwrite what was read, needs no fence of ours: one is
// implied where wgmma.wait_group observes the completion (PTX ISA, wgmma, async proxy), and
// arrivals at `empty` come after it.
//
// Where allocators hand out pages in runs, a warp's rows often lie one after another in the pool:
// then they are boxes, and the copy engine fetches them without any cp.async.
#pragma once

#include "cuda/kernels/hopper/gather.h"
#include "cuda/kernels/hopper/prefill_producer.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// Gathers one warp's rows of the tiles of all items of a worker, each item's from last to first,
/// once per KV head.
template <class C>
struct TileGatherer {
  static constexpr u32 kRows = C::kTileN / kGatheringWarps;  // one per lane
  static constexpr u32 kPartBytes = PrefillShared<C>::kPartBytes;

  /// Of a warp's rows of a tile.
  enum Presence : u32 {
    kSome,  // not all of them are the list's, or of the pool
    kAll,
    kRun,  // all, one after another in the pool
  };

  /// What rows of K or V are copied from.
  struct Source {
    i32 head;
    u32 number;  // of the lane's row
    Presence rows;
  };

  const HopperParams& hp;
  const Params& p;
  PrefillShared<C>& s;
  const SliceRange slices = worker_slices(p, static_cast<i32>(blockIdx.x));
  const u32 lane = threadIdx.x & 31;
  const u32 warp = threadIdx.x / 32;

  // The next tile.
  i32 index = slices.first;
  const Work* w = nullptr;
  i32 head = 0;
  PageSlots pages;
  i32 slot = 0;       // first of the tile
  bool first = true;  // tile of the item
  PendingSlot pending{};

  Source k{}, next_v{};  // of the tile whose K is copied
  Ring<C::kQStages> q_ring;

  PLAIT_DEVICE TileGatherer(const HopperParams& params, PrefillShared<C>& shared)
      : hp(params), p(params.common), s(shared) {
    start_item();
  }

  PLAIT_DEVICE bool done() const { return index >= slices.last; }
  PLAIT_DEVICE i32 next_row() const { return slot + static_cast<i32>(warp * kRows + lane % kRows); }
  PLAIT_DEVICE void start_item() {
    if (done()) return;
    w = &s.works.get(p, slices, index);
    head = warp_uniform(w->head);
    pages = PageSlots(p, *w);
    pages.end = w->list_end;  // as boxes: tiles are complete but at the list's end
    start_head();
  }
  PLAIT_DEVICE void start_head() {
    first = true;
    slot = pages.begin + (tile_range<C>(*w).count - 1) * C::kTileN;
    pending = pages.fetch(p, next_row());
  }
  PLAIT_DEVICE void advance() {
    slot -= C::kTileN;
    if (slot >= pages.begin) {  // none but an item's first tile may have slots outside
      first = false;
      pending = pages.fetch_inside(p, next_row());
    } else if (++head < w->head + w->count) {
      start_head();
    } else {
      ++index;
      start_item();
    }
  }

  /// Whether the warp's rows follow one another in the pool, if numbers count rows.
  PLAIT_DEVICE bool is_run(u32 number) const {
    return !__any_sync(~0U, number != __shfl_sync(~0U, number, 0) + lane % kRows);
  }
  /// Copies such rows: a box for each part.
  PLAIT_DEVICE void copy_run(const TensorMap* map, u32 full, u32 to, const Source& source) {
    if (lane == 0) {
      mbarrier_arrive_expect(full, C::kParts * kRows * 128);
    } else {
      mbarrier_arrive(full);
    }
    __syncwarp();
    if (lane < C::kParts) {
      const i32 first_row = static_cast<i32>(source.number - lane);
      tma_load_5d(to + lane * kPartBytes, map, full, 0, first_row, static_cast<i32>(lane),
                  source.head, 0, kL2EvictLast);
    }
    __syncwarp();
  }

  /// Copies this warp's rows of a tile when the stage is free.
  template <bool kIsV, i32 kStage>
  PLAIT_DEVICE void copy(u32 parity, const Source& source) {
    const u32 to = shared_address(kIsV ? s.v[kStage] : s.k[kStage]) + warp * (kRows * 128);
    const u32 full = shared_address(kIsV ? &s.v_full[kStage] : &s.k_full[kStage]);
    const u32 empty = shared_address(kIsV ? &s.v_empty[kStage] : &s.k_empty[kStage]);
    const u32 bytes = kIsV ? hp.v_rows.bytes : hp.k_rows.bytes;
    if (source.rows == kRun) {
      mbarrier_wait(empty, parity);
      copy_run(kIsV ? &hp.v_map : &hp.k_map, full, to, source);
      return;
    }
    const RowsInShared<kRows> rows{shared_address(s.row_numbers[warp][kIsV ? 1 : 0])};
    rows.write(lane, source.number);
    const u64 from = lane_source(p, kIsV, source.head, lane);
    mbarrier_wait(empty, parity);
    if (source.rows == kAll) {
      copy_rows<kRows, C::kParts, kPartBytes, true>(rows, lane, to, from, bytes);
    } else {
      copy_rows<kRows, C::kParts, kPartBytes, false>(rows, lane, to, from, bytes);
      if (__any_sync(~0U, source.number == kBadRow)) {
        copy_async_commit();
        copy_async_wait<0>();
        __syncwarp();
        poison_rows<kRows, C::kParts, kPartBytes>(rows, lane, to);
        mbarrier_arrive(full);
        return;
      }
    }
    mbarrier_arrive_after_copies(full);
  }

  template <i32 kStage>
  PLAIT_DEVICE void copy_k(u32 parity) {
    k.head = next_v.head = head;
    if (!__any_sync(~0U, !is_row(p, pending))) {
      k.number = known_row_number(hp.k_rows, pending);
      next_v.number = known_row_number(hp.v_rows, pending);
      k.rows = next_v.rows = hp.maps_count_rows != 0 && is_run(k.number) ? kRun : kAll;
    } else {
      k.rows = next_v.rows = kSome;
      check_slot(p, *w, pending);
      k.number = row_number(hp.k_rows, pending);
      next_v.number = row_number(hp.v_rows, pending);
    }
    advance();  // its page ids load while this tile is copied
    copy<false, kStage>(parity, k);
  }

  /// K of the next tile if there is one, V of the one before; whether there was.
  template <i32 kStage>
  PLAIT_DEVICE bool step(u32 k_parity, u32 v_parity) {
    const Source v = next_v;
    const bool more = !done();
    const bool starts_item = more && first;
    const Work* work = w;
    const i32 work_head = head;
    if (more) copy_k<kStage>(k_parity);
    copy<true, kStage ^ 1>(v_parity, v);
    if (starts_item && warp == 0) copy_queries<C>(hp, s, *work, work_head, q_ring);
    return more;
  }

  PLAIT_DEVICE void run() {
    static_assert(C::kStages == 2, "stages are template arguments: addresses become constants");
    if (done()) return;
    const Work& work = *w;
    const i32 work_head = head;
    copy_k<0>(1);
    if (warp == 0) copy_queries<C>(hp, s, work, work_head, q_ring);
    for (u32 parity = 1;; parity ^= 1) {
      if (!step<1>(parity, parity)) break;
      if (!step<0>(parity ^ 1, parity)) break;
    }
  }
};

/// By warpgroup 0.
template <class C>
PLAIT_DEVICE void prefill_gather(const HopperParams& hp, PrefillShared<C>& s) {
  TileGatherer<C>(hp, s).run();
}

#endif

}  // namespace plait::device::hopper
