// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Rows of K and V one by one, for page sizes that no box of tokens divides: 16 bytes a lane by
// cp.async, to where the copy engine would have put them. The page size is read at run time.
#pragma once

#include "cuda/kernels/hopper/params.h"
#include "cuda/kernels/hopper/work.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// A slot on its way: its page id, asked for but not looked at, and its place in the page, or
/// kNoToken if it is none of the item's, kBadPage if its page id is outside the pool.
struct PendingSlot {
  i32 id, token;
};
inline constexpr i32 kNoToken = -1;
inline constexpr i32 kBadPage = -2;

/// The part of a page list that an item reads: slots [begin, end).
struct PageSlots {
  const i32* ids = nullptr;  // of the list's first page
  i32 begin = 0, end = 0;
  PageSlots() = default;
  PLAIT_DEVICE PageSlots(const Params& p, const Work& w)
      : ids(p.page_ids[w.view] + w.page_begin), begin(w.kv_begin), end(w.kv_end) {}

  PLAIT_DEVICE PendingSlot fetch(const Params& p, i32 slot) const {
    return slot < begin || slot >= end ? PendingSlot{0, kNoToken} : fetch_inside(p, slot);
  }
  PLAIT_DEVICE PendingSlot fetch_inside(const Params& p, i32 slot) const {
    const u32 at = static_cast<u32>(slot);
    const u32 size = static_cast<u32>(p.page_size);
    const u32 page = p.page_shift >= 0 ? at >> p.page_shift : at / size;
    return {__ldg(ids + page), static_cast<i32>(at - page * size)};
  }
};

/// Whether a slot is a row of the pool.
PLAIT_DEVICE bool is_row(const Params& p, const PendingSlot& slot) {
  return slot.token >= 0 && is_page_id(p, slot.id);
}
/// Looks at the page id.
PLAIT_DEVICE void check_slot(const Params& p, const Work& w, PendingSlot& slot) {
  if (slot.token >= 0 && !check_page_id(p, w, slot.id)) slot.token = kBadPage;
}

/// Numbers, in RowUnits, that no row has: of kNoToken and kBadPage.
inline constexpr u32 kNoRow = kMaxRowNumber + 1;
inline constexpr u32 kBadRow = kMaxRowNumber + 2;

PLAIT_DEVICE u32 known_row_number(const RowUnits& units, const PendingSlot& slot) {
  return units.page * static_cast<u32>(slot.id) + units.token * static_cast<u32>(slot.token);
}
PLAIT_DEVICE u32 row_number(const RowUnits& units, const PendingSlot& slot) {
  return slot.token < 0 ? kMaxRowNumber - static_cast<u32>(slot.token)
                        : known_row_number(units, slot);
}

/// What the calling lane copies of row 0 of a KV head: 16 of the bytes of each part.
PLAIT_DEVICE u64 lane_source(const Params& p, bool of_v, i32 head, u32 lane) {
  return reinterpret_cast<u64>(of_v ? p.v : p.k) +
         static_cast<u64>((of_v ? p.v_stride_head : p.k_stride_head) * head) * 2 + (lane & 7) * 16;
}

// A warp copies rows four at a time: in step i, lanes 8 r up fetch row 4 i + r, 16 bytes each. Row
// numbers are read for four steps at once.

/// Row numbers in lanes: lane `first` + r has that of row r.
struct RowsInLanes {
  u32 mine, first;
  PLAIT_DEVICE uint4 read(u32 lane, u32 step) const {
    const u32 at = first + step * 4 + lane / 8;
    return {of(at), of(at + 4), of(at + 8), of(at + 12)};
  }

 private:
  PLAIT_DEVICE u32 of(u32 lane) const { return __shfl_sync(~0U, mine, static_cast<i32>(lane)); }
};

/// Row numbers in kRows words of shared memory at `address`, those of one r next to each other.
template <u32 kRows>
struct RowsInShared {
  u32 address;
  /// By all lanes: lane r, and any that is r modulo kRows, brings the number of row r.
  PLAIT_DEVICE void write(u32 lane, u32 number) const {
    const u32 row = lane % kRows;
    __syncwarp();
    store_shared4(address + (row % 4 * (kRows / 4) + row / 4) * 4, number);
    __syncwarp();
  }
  PLAIT_DEVICE uint4 read(u32 lane, u32 step) const {
    return load_shared16(address + (lane / 8 * (kRows / 4) + step) * 4);
  }
};

/// Calls body(row number, where behind a multiple of 1024 the lane's 16 bytes go) for all
/// steps. Rows are swizzled rows of 128 bytes: two offsets and constants.
template <u32 kRows, class Rows, class Body>
PLAIT_DEVICE void for_each_step(const Rows& rows, u32 lane, Body&& body) {
#pragma unroll
  for (u32 step = 0; step < kRows / 4; step += 4) {
    const uint4 number = rows.read(lane, step);
    const u32 even = swizzle128(lane / 8, lane & 7) + step * 512;
    const u32 odd = swizzle128(lane / 8 + 4, lane & 7) + step * 512;
    body(number.x, even);
    body(number.y, odd);
    body(number.z, even + 1024);
    body(number.w, odd + 1024);
  }
}

/// Starts the copies of kRows rows to the rows at `to`, a multiple of 1024, whose parts are
/// kPartBytes apart; zeros where there is no row, unless kComplete says that all are there.
template <u32 kRows, i32 kParts, u32 kPartBytes, bool kComplete, class Rows>
PLAIT_DEVICE void copy_rows(const Rows& rows, u32 lane, u32 to, u64 source, u32 unit_bytes) {
  for_each_step<kRows>(rows, lane, [&](u32 number, u32 target) {
    const u64 from = source + multiply_wide(number, unit_bytes);
#pragma unroll
    for (u32 part = 0; part < kParts; ++part) {
      if constexpr (kComplete) {
        copy_async<16>(to + target + part * kPartBytes, from + part * 128);
      } else {
        copy_async<16>(to + target + part * kPartBytes,
                       reinterpret_cast<const void*>(from + part * 128), number <= kMaxRowNumber);
      }
    }
  });
}

/// NaN for rows whose page id is outside the pool, after their copies have landed.
template <u32 kRows, i32 kParts, u32 kPartBytes, class Rows>
PLAIT_DEVICE void poison_rows(const Rows& rows, u32 lane, u32 to) {
  for_each_step<kRows>(rows, lane, [&](u32 number, u32 target) {
    if (number != kBadRow) return;
    for (u32 part = 0; part < kParts; ++part) {
      store_shared_fill16(to + target + part * kPartBytes, ~0U);
    }
  });
}

#endif

}  // namespace plait::device::hopper
