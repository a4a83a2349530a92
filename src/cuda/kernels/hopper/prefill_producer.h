// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The warps that feed the prefill kernel by bulk tensor copies: queries always, K and V where boxes
// fit pages (else prefill_gather.h).
#pragma once

#include "cuda/kernels/hopper/params.h"
#include "cuda/kernels/hopper/prefill_layout.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// Starts the copies of an item's queries when their buffer is free. By a whole warp.
template <class C>
PLAIT_DEVICE void copy_queries(const HopperParams& hp, PrefillShared<C>& s, const Work& w, i32 head,
                               Ring<C::kQStages>& ring) {
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
  mbarrier_wait(shared_address(&s.q_empty[ring.stage]), ring.parity ^ 1);
  if (lane < 2) {
    const u32 full = shared_address(&s.q_full[ring.stage]);
    if (lane == 0) mbarrier_arrive_expect(full, 2 * kQBytes<C>);
    const i32 row = (w.fused_row_begin + warpgroup_row(w, lane)) / group_size<C>(hp.common);
    tma_load_5d(shared_address(s.q[ring.stage][lane]), &hp.q_map, full, 0, 0, row, 0, head,
                kL2EvictFirst);
  }
  __syncwarp();
  ring.advance();
}

/// Where box `box` of a tile lies.
struct BoxSource {
  i32 page, token;
};
template <class C>
PLAIT_DEVICE BoxSource box_source(const Params& p, const Work& w, i32 tile_slot, i32 box) {
  if constexpr (C::kPaged) {
    const i32 slot = tile_slot + box * C::kBox;
    BoxSource source{-1, slot % page_size<C>(p)};
    if (slot < w.list_end) {
      source.page = load_page_id(p, w, slot / page_size<C>(p));
    }
    return source;
  } else {
    return {0, w.page_begin + tile_slot};
  }
}

/// K is one box per tile where a tile is contiguous, else its parts are copied apart, by two warps.
template <class C>
inline constexpr bool kWholeK = C::kBox == C::kTileN || C::kParts == 1;

/// Arrivals that complete a tile of K, or of V: of a warp that starts copies, or of all threads
/// that gather.
template <class C, bool kIsV>
inline constexpr u32 kFillArrivals = C::kGather           ? 128
                                     : kIsV || kWholeK<C> ? 1
                                                          : 2;

/// Producer warp 0 copies Q and the first half of K's parts (or all of K), warp 1 copies V, warp 2
/// the other parts of K: all tiles of all items, in the order in which they are read. One code path
/// for the three: registers are scarce here.
template <class C>
PLAIT_DEVICE void prefill_producer(const HopperParams& hp, PrefillShared<C>& s) {
  constexpr u32 kPartBytes = PrefillShared<C>::kPartBytes;
  constexpr u32 kTileBytes = PrefillShared<C>::kTileBytes;
  constexpr i32 kBoxes = C::kTileN / C::kBox;
  constexpr i32 kWarpParts = kWholeK<C> ? 1 : C::kParts / 2;  // copies of K per box by one warp
  static_assert(kBoxes * kWarpParts <= 32, "one copy per lane");
  const Params& p = hp.common;
  const i32 warp = static_cast<i32>(threadIdx.x) / 32;
  if (warp > (kWholeK<C> ? 1 : 2)) return;
  const i32 lane = static_cast<i32>(threadIdx.x) & 31;
  const bool is_v = warp == 1;
  const bool all_parts = is_v || kWholeK<C>;
  const i32 box = lane % kBoxes;
  const i32 part = all_parts ? 0 : warp / 2 * kWarpParts + lane / kBoxes;
  const i32 copies = all_parts ? kBoxes : kBoxes * kWarpParts;
  const u32 bytes = all_parts ? kTileBytes : kWarpParts * kPartBytes;
  const TensorMap* map = is_v ? &hp.v_map : &hp.k_map;
  const u32 data = shared_address(is_v ? s.v[0] : s.k[0]) + static_cast<u32>(part) * kPartBytes +
                   static_cast<u32>(box * C::kBox) * (all_parts ? C::kParts * 128U : 128U);
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
      if (warp == 0) copy_queries<C>(hp, s, w, head, q_ring);
      i32 tile_slot = tiles.base + (tiles.count - 1) * C::kTileN;
      BoxSource next = box_source<C>(p, w, tile_slot, box);
      for (i32 t = tiles.count; t > 0; --t) {
        const BoxSource source = next;
        tile_slot -= C::kTileN;
        if (t > 1) next = box_source<C>(p, w, tile_slot, box);  // its latency hides in the wait
        const u32 stage = static_cast<u32>(ring.stage);
        mbarrier_wait(empty + stage * 8, ring.parity ^ 1);
        if (lane == 0) mbarrier_arrive_expect(full + stage * 8, bytes);
        __syncwarp();
        if (lane < copies) {
          tma_load_5d(data + stage * kTileBytes, map, full + stage * 8, 0, source.token, part, head,
                      source.page, kL2EvictLast);
        }
        __syncwarp();
        ring.advance();
      }
    }
  }
}

#endif

}  // namespace plait::device::hopper
