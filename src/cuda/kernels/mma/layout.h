// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Where everything lies in a CTA's dynamic shared memory, as a function of the tile shape: the
// kernel carves by it, and the host chooses tiles that fit by the same arithmetic. Offsets and
// pitches are bytes; offsets are multiples of 16.
#pragma once

#include "core/device/plan_layout.h"

namespace plait::device::mma {

PLAIT_HD constexpr i32 round_up(i32 a, i32 b) { return ceil_div(a, b) * b; }

/// Row pitch: an odd number of 16-byte words, so that eight rows at one column lie in different
/// banks (ldmatrix) without a swizzle, for every head dim.
PLAIT_HD constexpr i32 row_pitch(i32 elements, i32 element_size) {
  return (ceil_div(elements * element_size, 16) | 1) * 16;
}

/// Bytes moved per copy: the widest that divides a row; below 4 the copy goes through registers.
PLAIT_HD constexpr i32 copy_bytes(i32 row_bytes) {
  for (i32 bytes = 16; bytes > 1; bytes /= 2) {
    if (row_bytes % bytes == 0) return bytes;
  }
  return 1;
}

/// The choices that determine a kernel's shared memory and registers.
struct TileShape {
  i32 q_tile, kv_tile, stages, warps;
  i32 row_blocks;    // of 16 rows, per warp
  i32 column_warps;  // warps that share the output columns of the same rows
  i32 head_dim_qk, head_dim_vo;
  i32 compute_size, kv_size;  // bytes of an element in the products, in the cache
  bool widen;                 // the cache's type differs from that of the products
  bool rope, user, alibi;

  PLAIT_HD constexpr i32 row_warps() const { return q_tile / (16 * row_blocks); }
  /// Warps that share the keys of a tile, each with a softmax state of its own.
  PLAIT_HD constexpr i32 key_warps() const { return warps / (row_warps() * column_warps); }
  PLAIT_HD constexpr i32 qk_padded() const { return round_up(head_dim_qk, 16); }
  PLAIT_HD constexpr i32 vo_padded() const { return round_up(head_dim_vo, 16 * column_warps); }
};

/// Device addresses of a key's K and V rows for the item's head; 0: there is no such key.
struct alignas(16) KeyRow {
  u64 k, v;
};

/// What ALiBi knows of a query row; rows lie in the order of bias_slot.
struct alignas(8) RowSlope {
  float slope;   // base 2, unless logits are finished one by one
  float offset;  // the row's position, counted from the item's first key
};

/// Facts of a query row that only user variants look at.
struct QueryRow {
  i32 request, qo_len, kv_len, head;
};

/// An item's tiles as its main loop sees them: one read of shared memory per tile.
struct alignas(16) TileCounts {
  i32 all;
  i32 fast;                  // the first of them need no care when they are loaded
  i32 full_begin, full_end;  // of these every row sees every key (canonical kernels: not used)
};

/// The plan's words about the item at hand. They live in shared memory: registers are what limits
/// the tile sizes.
struct ItemFacts {
  TileCounts tiles;
  Run run;
  Piece piece;            // the only one, or under canonical segments the first
  RowBlock block;         // of that piece
  i32 slice, last_slice;  // the worker's cursor: slice, and item within it
  i32 item;               // -1: no item is left
  i32 kv_head;
  i32 key_begin;         // see KeyRange
  i32 consecutive;       // ALiBi: no key stands in a list with positions, and the first of all
  i32 first_position;    // tiles stands here
  float base2, natural;  // see ScoreScale
  i32 q_aligned;         // rows may be moved with copies of copy_bytes
  i32 serial;            // of the item, from 1
  i32 poisoned_serial;   // the last item that met a bad page id, see Item
  i32 last_arrivals;     // merges that this item completed, see Arrivals
  i32 bases;             // full tiles take ALiBi in form `bases` of device/alibi.h
};

struct SharedLayout {
  i32 q_pitch, raw_k_pitch, raw_v_pitch, k_pitch, v_pitch;
  i32 q;    // query rows
  i32 raw;  // per stage: rows of K, then of V, as in the cache
  i32 raw_k_bytes, stage_bytes;
  i32 wide_k, wide_v;  // the same tile in the type of the products, if that differs
  // Finished rows leave through the space of the tiles: per key warp reference and sum of every
  // row, then outputs of `result_pitch` floats.
  i32 row_states, results, result_pitch;
  i32 probabilities, probability_pitch;     // f32 path: per warp [16][pitch floats]
  i32 key_rows, positions, rope_positions;  // a ring of kKeyBlocks blocks, a key per thread each
  i32 query_positions, row_slopes, query_rows;
  i32 arrivals;  // indices of completed merges
  i32 facts;
  i32 total;
};

inline constexpr i32 kMaxArrivals = 128;  // merges of one item that are looked at together

inline constexpr i32 kKeyBlocks = 3;  // of the key table: in use, ready, being written

PLAIT_HD constexpr SharedLayout shared_layout(const TileShape& s) {
  SharedLayout l{};
  l.q_pitch = row_pitch(s.qk_padded(), s.compute_size);
  l.k_pitch = l.q_pitch;
  l.v_pitch = row_pitch(s.vo_padded(), s.compute_size);
  l.raw_k_pitch = s.widen ? row_pitch(s.head_dim_qk, s.kv_size) : l.k_pitch;
  l.raw_v_pitch = s.widen ? row_pitch(s.head_dim_vo, s.kv_size) : l.v_pitch;
  l.raw_k_bytes = s.kv_tile * l.raw_k_pitch;
  l.stage_bytes = l.raw_k_bytes + s.kv_tile * l.raw_v_pitch;
  l.raw = s.q_tile * l.q_pitch;
  l.wide_k = l.raw + s.stages * l.stage_bytes;
  l.wide_v = l.wide_k + (s.widen ? s.kv_tile * l.k_pitch : 0);
  const i32 tiles_end = l.wide_v + (s.widen ? s.kv_tile * l.v_pitch : 0);
  l.results = 2 * s.key_warps() * s.q_tile * 4;
  l.result_pitch = s.vo_padded() + 4;
  const i32 results_end = l.results + s.key_warps() * s.q_tile * l.result_pitch * 4;
  l.probabilities = round_up(max_of(tiles_end, results_end), 16);
  l.probability_pitch = s.kv_tile / s.key_warps() + 1;
  l.key_rows = l.probabilities +
               (s.compute_size == 4 ? round_up(s.warps * 16 * l.probability_pitch * 4, 16) : 0);
  const i32 keys = kKeyBlocks * 32 * s.warps;
  l.positions = l.key_rows + keys * static_cast<i32>(sizeof(KeyRow));
  l.rope_positions = l.positions + keys * 4;
  l.query_positions = l.rope_positions + (s.rope ? keys * 4 : 0);
  l.row_slopes = l.query_positions + s.q_tile * 4;
  l.query_rows = l.row_slopes + (s.alibi ? s.q_tile * static_cast<i32>(sizeof(RowSlope)) : 0);
  l.arrivals = l.query_rows + (s.user ? s.q_tile * static_cast<i32>(sizeof(QueryRow)) : 0);
  l.facts = l.arrivals + kMaxArrivals * 8;
  l.total = l.facts + round_up(static_cast<i32>(sizeof(ItemFacts)), 16);
  return l;
}

/// What the driver takes from a multiprocessor's shared memory for every CTA.
inline constexpr i32 kReservedShared = 1024;

/// CTAs per multiprocessor: two of 128 threads leave every thread 255 registers.
PLAIT_HD constexpr i32 blocks_per_multiprocessor(const TileShape& s, i32 shared_bytes) {
  const i32 fit = shared_bytes / (shared_layout(s).total + kReservedShared);
  return max_of(1, min_of(fit, s.warps <= 4 ? 2 : 1));
}

}  // namespace plait::device::mma
