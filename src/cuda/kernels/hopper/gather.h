// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Rows of K and V one by one, for page sizes that no box of tokens divides: 16 bytes a lane by
// cp.async, to where the copy engine would have put them. The page size is read at run time.
#pragma once

#include "cuda/kernels/hopper/work.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// A row of NaN, copied where a page id is outside the pool: copies need no branch for that.
struct alignas(128) NanRow {
  u32 words[128];
};
constexpr NanRow make_nan_row() {
  NanRow row{};
  for (u32& word : row.words) word = ~0U;
  return row;
}
__device__ const NanRow kNanRow = make_nan_row();

/// A slot on its way: its page id, asked for but not looked at, and its place in the page; -1 if it
/// is none of the item's.
struct PendingSlot {
  i32 id, token;
};
PLAIT_DEVICE PendingSlot fetch_slot(const Params& p, const Work& w, i32 slot) {
  PendingSlot pending{0, -1};
  if (slot >= w.kv_begin && slot < w.kv_end) {
    const u32 at = static_cast<u32>(slot);
    const u32 size = static_cast<u32>(p.page_size);
    const u32 page = p.page_shift >= 0 ? at >> p.page_shift : at / size;
    pending.token = static_cast<i32>(at - page * size);
    pending.id = __ldg(p.page_ids[w.view] + w.page_begin + page);
  }
  return pending;
}

/// Rows of K or V of one KV head. Strides are counted in 16 bytes, which makes them 32-bit numbers:
/// the host sees to that.
struct HeadRows {
  u64 base;
  u32 page, token;
  PLAIT_DEVICE HeadRows() {}
  PLAIT_DEVICE HeadRows(const Params& p, bool of_v, i32 head)
      : base(reinterpret_cast<u64>(of_v ? p.v : p.k) +
             static_cast<u64>((of_v ? p.v_stride_head : p.k_stride_head) * head) * 2),
        page(static_cast<u32>((of_v ? p.v_stride_page : p.k_stride_page) / 8)),
        token(static_cast<u32>((of_v ? p.v_stride_slot : p.k_stride_slot) / 8)) {}
};

/// Address of the row of a slot; 0 if it is none of the item's.
PLAIT_DEVICE u64 row_address(const Params& p, const Work& w, const HeadRows& rows,
                             const PendingSlot& slot) {
  u64 row = rows.base + ((static_cast<u64>(rows.page) * static_cast<u32>(slot.id) +
                          static_cast<u64>(rows.token) * static_cast<u32>(slot.token))
                         << 4);
  if (slot.token < 0) row = 0;
  if (!check_page_id(p, w, slot.id)) row = reinterpret_cast<u64>(&kNanRow);
  return row;
}

/// Where the lanes of a warp copy 16 rows from: in step i of 4, lanes 8 r up fetch row 4 i + r, 16
/// bytes each. Small numbers where there is no row.
struct RowSources {
  u64 from[4];
  /// Lane `first_lane` + r holds the address of row r.
  PLAIT_DEVICE void spread(u32 lane, u64 address, u32 first_lane) {
    const u32 low = static_cast<u32>(address);
    const u32 high = static_cast<u32>(address >> 32);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const i32 source = static_cast<i32>(first_lane + i * 4 + lane / 8);
      from[i] =
          (static_cast<u64>(__shfl_sync(~0U, high, source)) << 32 | __shfl_sync(~0U, low, source)) +
          (lane & 7) * 16;
    }
  }
};

/// Starts the copies of 16 rows to the swizzled rows at `target`, a multiple of 1024, whose parts
/// are `part_bytes` apart; zeros where there is no row, unless kComplete says that all are there.
template <i32 kParts, bool kComplete>
PLAIT_DEVICE void copy_16_rows(u32 lane, u32 target, u32 part_bytes, const RowSources& rows) {
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 to = target + swizzle128(i * 4 + lane / 8, lane & 7);
    const u64 from = rows.from[i];
#pragma unroll
    for (u32 part = 0; part < kParts; ++part) {
      if constexpr (kComplete) {
        copy_async<16>(to + part * part_bytes, from + part * 128);
      } else {
        copy_async<16>(to + part * part_bytes, reinterpret_cast<const void*>(from + part * 128),
                       from >= 128);
      }
    }
  }
}

#endif

}  // namespace plait::device::hopper
