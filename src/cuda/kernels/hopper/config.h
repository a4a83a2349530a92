// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a hopper kernel is specialised for, from the KernelConfig that the JIT writes of its key.
#pragma once

#include "core/device/portable.h"

namespace plait::device::hopper {

/// Largest power of two up to `limit` that divides `value`.
PLAIT_HD constexpr i32 power_of_two_divisor(i32 value, i32 limit) {
  i32 d = 1;
  while (d < limit && value % (2 * d) == 0) d *= 2;
  return d;
}

/// Whether rows are gathered one by one: boxes of fewer than 16 tokens cost more copies than rows.
PLAIT_HD constexpr bool gathers_rows(bool paged, i32 page_size) {
  return paged && (page_size % 16 != 0 || page_size > 0xFFFF);
}

/// Tokens per copy of a tile of `tile` tokens: copies do not leave their page.
PLAIT_HD constexpr i32 box_tokens(bool paged, i32 page_size, i32 tile) {
  return paged ? power_of_two_divisor(page_size, tile) : tile;
}

/// Largest query group, and so the most query heads of a box of the query map.
inline constexpr i32 kMaxGroupSize = 64;
inline constexpr i32 kPartDims = 64;  // of a row, 128 bytes: what one swizzled row of a copy holds
inline constexpr i32 kDecodeBlockTokens = 16;
inline constexpr i32 kGatheringWarps = 4;  // of prefill: each copies a quarter of a tile

/// What shared memory holds: K and V twice, queries twice or, at 256, once; in decode 192 KiB of
/// slots.
PLAIT_HD constexpr i32 prefill_tile_tokens(i32 head_dim) { return head_dim > 128 ? 64 : 128; }
PLAIT_HD constexpr i32 prefill_query_stages(i32 head_dim) { return head_dim > 128 ? 1 : 2; }
PLAIT_HD constexpr i32 decode_warps(i32 head_dim) { return head_dim > 128 ? 4 : 8; }
/// Two KV heads at once, by half of the warps each.
PLAIT_HD constexpr bool decodes_pairs(i32 head_dim) { return head_dim <= 128; }
PLAIT_HD constexpr i32 decode_slots(i32 head_dim) { return head_dim > 64 ? 3 : 6; }  // per warp

}  // namespace plait::device::hopper
