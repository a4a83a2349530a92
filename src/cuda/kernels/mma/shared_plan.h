// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Where everything lies in a CTA's dynamic shared memory. All offsets are bytes and multiples of 16.
#pragma once

#include "core/device/plan_layout.h"
#include "cuda/kernels/mma/config.h"

namespace plait::device::mma {

/// Where a key of the tile lies, or that there is none.
struct KeyRow {
  static constexpr i64 kAbsent = i64{-1} << 62;
  i64 k, v;  // bytes from the K and V of the item's head
};

/// Facts of a query row that only some kernels look at.
struct QueryRow {
  i32 request, qo_len, kv_len, head;
};

/// The plan's words about the item at hand. They live in shared memory: registers are what limits the
/// tile sizes.
struct ItemFacts {
  Run run;
  Piece piece;     // the only one, or under canonical segments the first
  RowBlock block;  // of that piece
  i32 poisoned_serial;  // the last item that met a bad page id, see Item
};

struct SharedPlan {
  using C = Config;
  static constexpr i32 kTableStages = C::kStages + 1;
  static constexpr i32 kRawK = C::kKvTile * C::kRawKPitch;
  static constexpr i32 kRawV = C::kKvTile * C::kRawVPitch;
  static constexpr i32 kStageBytes = kRawK + kRawV;

  static constexpr i32 q = 0;
  static constexpr i32 raw = q + C::kQTile * C::kQPitch;  // per stage: K rows, V rows
  static constexpr i32 wide_k = raw + C::kStages * kStageBytes;
  static constexpr i32 wide_v = wide_k + (C::kWiden ? C::kKvTile * C::kKPitch : 0);
  static constexpr i32 tiles_end = wide_v + (C::kWiden ? C::kKvTile * C::kVPitch : 0);

  // Finished rows leave through the space of the tiles: per key warp m and l of every row, then
  // outputs.
  static constexpr i32 merge_state = q;
  static constexpr i32 merge_output = merge_state + 2 * C::kKeyWarps * C::kQTile * 4;
  static constexpr i32 kMergePitch = C::kVoPadded + 4;  // floats
  static constexpr i32 merge_end =
      merge_output + C::kKeyWarps * C::kQTile * kMergePitch * 4;

  // Probabilities of the f32 path, per warp [16][kWarpKeys + 1].
  static constexpr i32 probabilities = max_of(tiles_end, merge_end);
  static constexpr i32 kProbabilityPitch = C::kWarpKeys + 1;  // floats
  static constexpr i32 key_rows =
      probabilities +
      (C::kTensorCores ? 0 : round_up(C::kWarps * 16 * kProbabilityPitch * 4, 16));
  static constexpr i32 positions = key_rows + kTableStages * C::kKvTile * 16;
  static constexpr i32 rope_positions = positions + kTableStages * C::kKvTile * 4;
  static constexpr i32 query_positions =
      rope_positions + (C::kRope ? kTableStages * C::kKvTile * 4 : 0);
  static constexpr i32 query_rows = query_positions + C::kQTile * 4;
  static constexpr i32 facts = query_rows + (C::kUser ? C::kQTile * 16 : 0);
  static constexpr i32 total = facts + round_up(static_cast<i32>(sizeof(ItemFacts)), 16);

  /// Shared memory that one multiprocessor gives to CTAs, and what each CTA costs beside its own.
  static constexpr i32 kPerMultiprocessor =
      1024 * (PLAIT_ARCH == 80 || PLAIT_ARCH == 87                          ? 164
              : PLAIT_ARCH == 86 || PLAIT_ARCH == 89 || PLAIT_ARCH >= 120 ? 100
                                                                            : 228);
  static constexpr i32 kReserved = 1024;
  static_assert(total + kReserved <= kPerMultiprocessor, "the tiles do not fit this architecture");
  /// CTAs per multiprocessor; two of 128 threads leave every thread 255 registers.
  static constexpr i32 kMinBlocks =
      C::kThreads <= 128 && 2 * (total + kReserved) <= kPerMultiprocessor ? 2 : 1;
  static_assert(raw % 16 == 0 && wide_k % 16 == 0 && key_rows % 16 == 0 && query_rows % 16 == 0);
};

}  // namespace plait::device::mma
