// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What the parts of the decode kernel agree on: shared memory, and how an item is cut into blocks.
#pragma once

#include "cuda/kernels/hopper/config.h"
#include "cuda/kernels/hopper/work.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// A config C has: DTypeCode kElement; i32 kHeadDim, kParts (of 64 dims), kWarps (a power of two),
// kSlots (per warp), kGroupSize, kPageSize (0: read at run time); bool kPaged, kGather, kCausal,
// kWindow, kSoftCap, kAlibi, kMeasured.

inline constexpr i32 kBlockTokens = kDecodeBlockTokens;
inline constexpr u32 kPartBytes = kBlockTokens * 128;  // 64 dims of a block
template <class C>
inline constexpr u32 kBlockBytes = C::kParts* kPartBytes;  // of K or of V
template <class C>
inline constexpr u32 kSlotBytes = 2 * kBlockBytes<C>;
inline constexpr i32 kDecodeRows = 16;
inline constexpr i32 kCachedWorks = 32;
inline constexpr u32 kItemBarrier = 1;  // see HeadShare

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
  i32 parked_at[C::kWarps];  // byte of `slots` where the warp parked its output state
  i32 merge_flags[C::kWarps * 32];
  alignas(8) u64 full[C::kWarps][C::kSlots];
};

/// How the warps share the heads of an item: half of them one head and half the next, while there
/// are two. Pages are read at twice the width then, and an item ends once for both.
template <class C>
struct HeadShare {
  static constexpr bool kPairs = decodes_pairs(C::kHeadDim);
  static_assert(!kPairs || !kSharedQueries<C>, "the buffer has queries of one head");
  i32 heads;  // at once
  i32 warps;  // of each

  PLAIT_DEVICE explicit HeadShare(i32 heads_left) {
    heads = kPairs && heads_left > 1 ? 2 : 1;
    warps = C::kWarps / heads;
  }
  PLAIT_DEVICE static i32 half(i32 warp) { return warp / (C::kWarps / 2); }
  PLAIT_DEVICE i32 head(i32 warp) const { return heads == 1 ? 0 : half(warp); }
  PLAIT_DEVICE i32 first_warp(i32 warp) const { return warp & ~(warps - 1); }
  /// The first block of a warp, where `phase` blocks were dealt before.
  PLAIT_DEVICE i32 first_block(i32 warp, i32 phase) const { return (warp - phase) & (warps - 1); }
  /// Barrier of the warps of a head. Halves may be an item apart, so that none is anyone else's.
  PLAIT_DEVICE u32 barrier(i32 warp) const {
    return kItemBarrier + static_cast<u32>(heads == 1 ? 0 : 1 + head(warp));
  }
  PLAIT_DEVICE void sync(i32 warp) const {
    named_barrier_sync(barrier(warp), static_cast<u32>(warps) * 32);
  }
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

#endif

}  // namespace plait::device::hopper
