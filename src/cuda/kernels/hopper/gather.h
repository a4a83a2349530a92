// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Rows of K and V one by one, for page sizes that no box of tokens divides: 16 bytes a lane by
// cp.async, to where the copy engine would have put them. The page size is read at run time.
#pragma once

#include "cuda/kernels/hopper/params.h"
#include "cuda/kernels/hopper/work.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// A slot on its way: its page id, asked for but not looked at, and its place in the page; -1 if it
/// is none of the item's.
struct PendingSlot {
  i32 id, token;
};

/// The part of a page list that an item reads: slots [begin, end).
struct PageSlots {
  const i32* ids;  // of the list's first page
  i32 begin, end;
  PLAIT_DEVICE PageSlots(const Params& p, const Work& w)
      : ids(p.page_ids[w.view] + w.page_begin), begin(w.kv_begin), end(w.kv_end) {}

  PLAIT_DEVICE PendingSlot fetch(const Params& p, i32 slot) const {
    if (slot < begin || slot >= end) return {0, -1};
    const u32 at = static_cast<u32>(slot);
    const u32 size = static_cast<u32>(p.page_size);
    const u32 page = p.page_shift >= 0 ? at >> p.page_shift : at / size;
    return {__ldg(ids + page), static_cast<i32>(at - page * size)};
  }
};

/// Numbers, in RowUnits, that no row has: of a slot that is none of the item's, of one whose page
/// id is outside the pool.
inline constexpr u32 kNoRow = kMaxRowNumber + 1;
inline constexpr u32 kBadRow = kMaxRowNumber + 2;

PLAIT_DEVICE u32 row_number(const Params& p, const Work& w, const RowUnits& units,
                            const PendingSlot& slot) {
  if (slot.token < 0) return kNoRow;
  if (!check_page_id(p, w, slot.id)) return kBadRow;
  return units.page * static_cast<u32>(slot.id) + units.token * static_cast<u32>(slot.token);
}

/// What the calling lane copies of row 0 of a KV head: 16 of the bytes of each part.
PLAIT_DEVICE u64 lane_source(const Params& p, bool of_v, i32 head, u32 lane) {
  return reinterpret_cast<u64>(of_v ? p.v : p.k) +
         static_cast<u64>((of_v ? p.v_stride_head : p.k_stride_head) * head) * 2 + (lane & 7) * 16;
}

/// 16 rows that a warp copies: in step i of 4, lanes 8 r up fetch row 4 i + r, 16 bytes each.
struct WarpRows {
  u32 number[4];
  /// Lane `first_lane` + r holds the number of row r.
  PLAIT_DEVICE void spread(u32 lane, u32 mine, u32 first_lane) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      number[i] = __shfl_sync(~0U, mine, static_cast<i32>(first_lane + i * 4 + lane / 8));
    }
  }
};

/// Starts the copies of 16 rows to the swizzled rows at `target`, a multiple of 1024, whose parts
/// are `part_bytes` apart; zeros where there is no row, unless kComplete says that all are there.
template <i32 kParts, bool kComplete>
PLAIT_DEVICE void copy_16_rows(u32 lane, u32 target, u32 part_bytes, u64 source, u32 unit_bytes,
                               const WarpRows& rows) {
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 to = target + swizzle128(i * 4 + lane / 8, lane & 7);
    const u64 from = source + static_cast<u64>(rows.number[i]) * unit_bytes;
#pragma unroll
    for (u32 part = 0; part < kParts; ++part) {
      if constexpr (kComplete) {
        copy_async<16>(to + part * part_bytes, from + part * 128);
      } else {
        copy_async<16>(to + part * part_bytes, reinterpret_cast<const void*>(from + part * 128),
                       rows.number[i] <= kMaxRowNumber);
      }
    }
  }
}

/// NaN for rows whose page id is outside the pool, after their copies have landed.
template <i32 kParts>
PLAIT_DEVICE void poison_16_rows(u32 lane, u32 target, u32 part_bytes, const WarpRows& rows) {
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 to = target + swizzle128(i * 4 + lane / 8, lane & 7);
    for (u32 part = 0; part < kParts; ++part) {
      if (rows.number[i] == kBadRow) store_shared_fill16(to + part * part_bytes, ~0U);
    }
  }
}

#endif

}  // namespace plait::device::hopper
