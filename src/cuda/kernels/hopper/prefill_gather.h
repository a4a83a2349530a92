// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The warps that feed the prefill kernel where pages have any size: warps 0 and 2 gather K, warps 1
// and 3 V, row by row; warp 0 copies the queries as well.
//
// cp.async writes shared memory through the generic proxy, wgmma reads it through the async proxy,
// and a proxy fence has to stand between them on the path of causality (PTX ISA, memory consistency
// model, causality order). That path is: the copies of a lane -> its cp.async.wait_group -> its
// fence.proxy.async -> __syncwarp -> lane 0's arrival at `full` -> the consumers' wait. The other
// direction, wgmma's reads before the copies that overwrite what was read, needs no fence of ours:
// one is implied where wgmma.wait_group observes the completion (PTX ISA, wgmma, async proxy), and
// arrivals at `empty` come after it.
//
// A warp waits for a tile's copies when it has started those of the next, or when it has nothing to
// do because nothing is free: the latter is the rule where the tensor cores are busy.
#pragma once

#include "cuda/kernels/hopper/gather.h"
#include "cuda/kernels/hopper/prefill_producer.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// Walks the tiles of all items of a worker, each item's from last to first, once per KV head.
template <class C>
struct TileCursor {
  const Params& p;
  PrefillShared<C>& s;
  const SliceRange slices = worker_slices(p, static_cast<i32>(blockIdx.x));
  i32 index = slices.first;
  const Work* w = nullptr;
  i32 head = 0;
  i32 slot = 0;       // first of the tile
  bool first = true;  // tile of the item

  PLAIT_DEVICE TileCursor(const Params& params, PrefillShared<C>& shared) : p(params), s(shared) {
    start_item();
  }
  PLAIT_DEVICE bool done() const { return index >= slices.last; }
  PLAIT_DEVICE void advance() {
    slot -= C::kTileN;
    first = slot < w->kv_begin;
    if (!first) return;
    if (++head < w->head + w->count) {
      start_head();
    } else {
      ++index;
      start_item();
    }
  }

 private:
  PLAIT_DEVICE void start_item() {
    if (done()) return;
    w = &s.works.get(p, slices, index);
    head = warp_uniform(w->head);
    start_head();
  }
  PLAIT_DEVICE void start_head() {
    const TileRange tiles = tile_range<C>(*w);
    slot = tiles.base + (tiles.count - 1) * C::kTileN;
  }
};

/// One warp's half of the tiles of K or of V.
template <class C, bool kIsV>
struct TileGatherer {
  static constexpr i32 kRows = C::kTileN / 64;  // of a lane: tokens 64 apart
  static constexpr u32 kPartBytes = PrefillShared<C>::kPartBytes;

  const HopperParams& hp;
  const Params& p;
  PrefillShared<C>& s;
  TileCursor<C> next;
  PendingSlot pending[kRows];  // of the next tile
  u32 unsignalled = 0;         // `full` of the tile whose copies nobody has waited for; 0: none

  PLAIT_DEVICE TileGatherer(const HopperParams& params, PrefillShared<C>& shared)
      : hp(params), p(params.common), s(shared), next(params.common, shared) {
    fetch();
  }

  PLAIT_DEVICE void fetch() {
    if (next.done()) return;
    const i32 thread = static_cast<i32>(threadIdx.x);
    const i32 slot = next.slot + thread / 64 * 32 + (thread & 31);
    const PageSlots pages(p, *next.w);
#pragma unroll
    for (i32 j = 0; j < kRows; ++j) pending[j] = pages.fetch(p, slot + j * 64);
  }

  /// Tells the consumers of the last tile but kLater: it is complete.
  template <int kLater>
  PLAIT_DEVICE void signal() {
    if (unsignalled == 0) return;
    copy_async_wait<kLater>();
    fence_async_shared();
    __syncwarp();
    if ((threadIdx.x & 31) == 0) mbarrier_arrive(unsignalled);
    unsignalled = 0;
  }

  /// Before it blocks, a warp tells what it has: others may wait for that.
  PLAIT_DEVICE void wait(u32 barrier, u32 parity) {
    if (!__any_sync(~0U, !mbarrier_test(barrier, parity))) return;
    signal<0>();
    mbarrier_wait(barrier, parity);
  }

  PLAIT_DEVICE const RowUnits& units() const { return kIsV ? hp.v_rows : hp.k_rows; }

  /// Where 16 rows of the warp belong.
  static PLAIT_DEVICE u32 target(u32 tile, u32 i) {
    return tile + threadIdx.x / 64 * 4096 + i / 2 * 8192 + i % 2 * 2048;
  }
  template <bool kComplete>
  PLAIT_DEVICE void copy(u32 tile, u64 source, const WarpRows (&rows)[2 * kRows]) {
#pragma unroll
    for (u32 i = 0; i < 2 * kRows; ++i) {
      copy_16_rows<C::kParts, kComplete>(threadIdx.x & 31, target(tile, i), kPartBytes, source,
                                         units().bytes, rows[i]);
    }
  }
  PLAIT_DEVICE void poison(u32 tile, const WarpRows (&rows)[2 * kRows]) {
    copy_async_commit();
    copy_async_wait<0>();
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < 2 * kRows; ++i) {
      poison_16_rows<C::kParts>(threadIdx.x & 31, target(tile, i), kPartBytes, rows[i]);
    }
  }

  PLAIT_DEVICE void run() {
    Ring<C::kQStages> q_ring;
    Ring<C::kStages> ring;
    while (!next.done()) {
      if (threadIdx.x < 32 && next.first) {
        wait(shared_address(&s.q_empty[q_ring.stage]), q_ring.parity ^ 1);
        copy_queries<C>(hp, s, *next.w, next.head, q_ring);
      }
      // All that can be done before the stage is free, so that its copies start at once when it is.
      const u32 lane = threadIdx.x & 31;
      WarpRows rows[2 * kRows];
      u32 largest = 0;
#pragma unroll
      for (i32 j = 0; j < kRows; ++j) {
        const u32 number = row_number(p, *next.w, units(), pending[j]);
        largest = max_of(largest, number);
        rows[2 * j].spread(lane, number, 0);
        rows[2 * j + 1].spread(lane, number, 16);
      }
      const bool complete = !__any_sync(~0U, largest > kMaxRowNumber);
      const u64 source = lane_source(p, kIsV, next.head, lane);
      next.advance();
      fetch();
      const u32 stage = static_cast<u32>(ring.stage);
      const u32 tile =
          shared_address(kIsV ? s.v[0] : s.k[0]) + stage * PrefillShared<C>::kTileBytes;
      wait(shared_address(kIsV ? s.v_empty : s.k_empty) + stage * 8, ring.parity ^ 1);
      if (complete) {
        copy<true>(tile, source, rows);
      } else {
        copy<false>(tile, source, rows);
        if (__any_sync(~0U, largest == kBadRow)) poison(tile, rows);
      }
      copy_async_commit();
      signal<1>();
      unsignalled = shared_address(kIsV ? s.v_full : s.k_full) + stage * 8;
      ring.advance();
    }
    signal<0>();
  }
};

/// By warpgroup 0.
template <class C>
PLAIT_DEVICE void prefill_gather(const HopperParams& hp, PrefillShared<C>& s) {
  if ((threadIdx.x / 32 & 1) == 0) {
    TileGatherer<C, false>(hp, s).run();
  } else {
    TileGatherer<C, true>(hp, s).run();
  }
}

#endif

}  // namespace plait::device::hopper
