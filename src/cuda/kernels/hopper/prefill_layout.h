// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What the producers and the consumers of the prefill kernel agree on: shared memory, its rings,
// and how an item is cut into tiles.
#pragma once

#include "cuda/kernels/hopper/config.h"
#include "cuda/kernels/hopper/work.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// A config C has: DTypeCode kElement; i32 kHeadDim, kParts (of 64 dims), kTileN (tokens), kBox
// (tokens per box of the K and V maps: divides kTileN and the page size; kTileN if ragged or
// gathered), kStages (of K and of V), kQStages, kGroupSize, kPageSize (0: read at run time); bool
// kPaged, kGather, kCausal, kWindow, kSoftCap, kAlibi, kMeasured.

inline constexpr i32 kWarpgroupRows = 64;
inline constexpr i32 kPrefillRows = 2 * kWarpgroupRows;
inline constexpr i32 kPrefillThreads = 384;
inline constexpr i32 kConsumerThreads = 256;
inline constexpr u32 kQPartBytes = kWarpgroupRows * 128;
template <class C>
inline constexpr u32 kQBytes = C::kParts* kQPartBytes;  // of one warpgroup
template <class C>
inline constexpr u32 kProducerRegisters = !C::kGather         ? 56
                                          : C::kHeadDim > 128 ? 72
                                                              : 88;
template <class C>
inline constexpr u32 kConsumerRegisters = !C::kGather         ? 224
                                          : C::kHeadDim > 128 ? 216
                                                              : 208;
inline constexpr u32 kMergeBarrier = 1;
inline constexpr u32 kTurnBarrier = 2;       // + warpgroup
inline constexpr u32 kWarpgroupBarrier = 4;  // + warpgroup
inline constexpr i32 kPrefillCachedWorks = 64;

template <class C>
struct PrefillShared {
  static constexpr u32 kPartBytes = C::kTileN * 128;
  static constexpr u32 kTileBytes = C::kParts * kPartBytes;
  alignas(1024) unsigned char q[C::kQStages][2][kQBytes<C>];
  alignas(1024) unsigned char k[C::kStages][kTileBytes];  // [part of dim][token][64]
  alignas(1024) unsigned char v[C::kStages][kTileBytes];  // [box][part of dim][token in box][64]
  WorkTable<kPrefillCachedWorks, kPrefillThreads / 32> works;
  SliceRange slices;  // for the consumers, which have no registers to keep them in
  i32 merge_flags[kConsumerThreads];
  // What the lanes of a gathering warp tell each other of its rows of K and of V.
  alignas(16) u32 row_numbers[C::kGather ? kGatheringWarps : 1][2]
                             [C::kGather ? C::kTileN / kGatheringWarps : 1];
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
  i32 base = w.kv_begin;
  if constexpr (C::kPaged && !C::kGather) base -= w.kv_begin % C::kBox;
  const i32 count = max_of(ceil_div(w.kv_end - base, C::kTileN), 1);
  // Tiles may reach past the item, but not past its list, where a later plan of a captured launch
  // may have no tokens: there they begin before it.
  if constexpr (!C::kPaged) base = min_of(base, w.list_end - count * C::kTileN);
  return {warp_uniform(base), warp_uniform(count)};
}

/// First row, in the item, of a warpgroup's 64: moved back so that they end with the item's rows at
/// the latest. A copy then never reads past the queries of a later plan; rows before the
/// warpgroup's own (of the tile, or of whatever lies before it) are computed and dropped.
PLAIT_DEVICE i32 warpgroup_row(const Work& w, i32 group) {
  return min_of((group + 1) * kWarpgroupRows, w.num_fused_rows) - kWarpgroupRows;
}

#endif

}  // namespace plait::device::hopper
