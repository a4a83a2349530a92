// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The plan as plain data: one blob of 32-bit words, the same bytes for every backend. All offsets
// count words from the start of the blob; a kernel gets the blob's address, a group index and a
// class index, and everything else is read from here, so a captured launch replays any later plan.
//
//   PlanHeader, GroupHeader[num_groups]
//   per group: RowBlock[], kv_len[], q_indptr[], row positions[], Run[], Piece[],
//              per class worker_indptr[] + Slice[], per class WorkerStart[], Merge[], StateRef[]
// Every section starts at a multiple of 16 bytes, row blocks at one of 64.
//
// Words used below
//   fused row   q_row * g + (qo_head % g) for the query heads of one KV head, g = group size; the
//               same numbering in every view, so partial states of different views line up
//   slot        index of a token in a row block's concatenated page list
//   state row   row index into the partial-state buffers: o f32 [state_rows, head_dim_vo] and
//               lse f32 [state_rows]
#pragma once

#include "core/device/portable.h"

namespace plait::device {

inline constexpr u32 kPlanMagic = 0x54494C50;  // "PLIT"
inline constexpr i32 kPlanVersion = 3;
inline constexpr i32 kMaxGroups = 8;
inline constexpr i32 kMaxClasses = 4;

struct PlanHeader {
  u32 magic;
  i32 version;
  i32 num_groups;
  i32 total_words;
  u64 spec_fingerprint;
  i32 reserved[8];  // device-side planning and self-advancing plans
};

/// One launch: the runs of one tile class and their assignment to workers.
struct ClassHeader {
  i32 q_tile;  // fused rows per item at most
  i32 kv_tile;
  i32 num_workers;
  i32 worker_offset;  // i32[num_workers + 1]: ranges into the slices
  i32 slice_offset;   // Slice[]
  i32 num_slices;
  i32 start_offset;  // WorkerStart[num_workers]
  i32 kv_tokens;     // of all items, head by head: a worker's share, at most 2^31 - 1
};

struct GroupHeader {
  i32 num_requests;
  i32 total_q;
  i32 num_classes;
  i32 segment_tokens;  // > 0: canonical segments, see Run
  i32 block_offset, num_blocks;
  i32 piece_offset, num_pieces;
  i32 run_offset, num_runs;
  i32 merge_offset, num_merges;
  i32 ref_offset, num_refs;
  i32 row_pos_offset;  // i32[total_q], logical position of each query row; -1: absent (affine
                       // blocks)
  i32 num_state_rows;
  i32 num_counters;     // arrival counters, one per merge and head
  i32 kv_len_offset;    // i32[num_requests]
  i32 q_indptr_offset;  // i32[num_requests + 1]
  i32 reserved[5];
  ClassHeader classes[kMaxClasses];
};

/// Word at which the header of a group stands.
PLAIT_HD constexpr i32 group_header_offset(i32 group) {
  constexpr i32 kFirst = 16;  // a multiple of 16 bytes behind the PlanHeader
  return kFirst + group * static_cast<i32>(sizeof(GroupHeader) / 4);
}
static_assert(sizeof(PlanHeader) <= 4 * group_header_offset(0), "plan layout");

enum RowBlockFlags : i32 {
  kBlockSpansRequests = 1,  // positions of its rows come from the row_pos table
  kBlockHasPositions =
      2,  // logical position of slot s: positions[page_begin + s / page_size] + s % page_size
  kBlockCustomMask = 4,  // the custom mask applies to it
  kBlockRagged = 8,      // page_begin is a token index into contiguous K and V
};

/// A row block of a view (for one KV head if the view has a head axis). 64 bytes.
struct RowBlock {
  i32 view;       // which page-id (and positions) operand
  i32 row_begin;  // first query row
  i32 num_rows;
  i32 page_begin;  // first entry of the page list; ragged: first token
  i32 num_slots;   // tokens in the list
  i32 base_pos;    // logical position of slot 0 (unless kBlockHasPositions)
  i32 pos0;        // logical position of query row row_begin (unless kBlockSpansRequests)
  i32 request;     // the request, or the first of them
  i32 flags;
  i32 kv_len;        // logical kv_len of the request (of the first, if spanning)
  u32 mask_bit0_lo;  // 64-bit index of the mask bit of (row_begin, mask_pos_base)
  u32 mask_bit0_hi;
  i32 mask_row_bits;  // bits from one query row to the next
  i32 mask_pos_base;  // logical position of bit 0 of a row; keys before it are visible to the mask
  i32 rope_k_begin;   // k_rope_positions[rope_k_begin + logical position]
  i32 segment_base;   // canonical coordinate of slot 0: tokens of the outer views of these rows
                      // (equals base_pos for blocks without positions)
};

/// A range of slots of one row block. Within [full_begin, full_end) every row of the item sees
/// every key: no mask arithmetic is needed (empty range: full_begin == full_end).
struct Piece {
  i32 block;
  i32 kv_begin, kv_end;
  i32 full_begin, full_end;
};

/// `head_count` equal items, one per KV head from head_begin on. An item attends fused rows
/// [fused_row_begin, +num_fused_rows) to the keys of its pieces, in order. It has one piece except
/// under canonical segments, where a segment may straddle the views of a cascade.
///
/// Canonical segments (segment_tokens = S > 0): the state of a row is the left fold, in order of
/// position, of the states over [0, S), [S, 2S) ... of logical position (of slot for
/// kBlockHasPositions; in general of segment_base + slot), and KV tiles begin at multiples of
/// kv_tile of the same coordinate: a tile may take keys from two pieces. An item covers either a
/// number of segments from the first one that its rows see on, folding in fp32 as it goes, or
/// exactly one segment; both give the same bits. A segment ends where the coordinate reaches a
/// multiple of S.
///
/// num_pieces == 0: rows that see no key; the item writes o = 0, lse = -inf.
struct Run {
  i32 fused_row_begin, num_fused_rows;
  i32 head_begin, head_count;
  i32 piece_begin, num_pieces;
  i32 state_begin;  // state row of (head_begin, first fused row), or -1: writes the output itself.
                    // Head h adds (h - head_begin) * num_fused_rows.
  i32 merge_begin, num_merges;  // merges its rows take part in, consecutive
  i32 cost;                     // predicted, per item, cost-model units
  i32 reserved[2];
};

/// Part of a run assigned to one worker: items of heads head_begin + first .. + count - 1.
struct Slice {
  i32 run;
  i32 first, count;
};

/// What a worker's first copies need, in one record: a device would read slice, run, piece and row
/// block one after the other before its first page id. Zeros if the worker has nothing to do.
struct alignas(16) WorkerStart {
  i32 first_slice, last_slice;  // as in worker_indptr
  i32 head, count;              // first KV head of the first slice, and how many
  i32 kv_begin, kv_end;         // of its run's first piece; zeros if it has none, as all below
  i32 page_begin, view;         // of that piece's row block
  i32 request, list_end;        // of the same; list_end: num_slots
  i32 reserved[2];
};

/// Rows whose output is merged from the same list of partial states, for each of head_count heads.
/// Head h uses counter counter_begin + (h - head_begin); its partial states are complete when the
/// counter reaches num_refs. All merges of a group have the same head_count, and merge m the
/// counters from m * head_count on.
struct Merge {
  i32 fused_row_begin, num_fused_rows;
  i32 head_begin, head_count;
  i32 ref_begin, num_refs;  // in merge order
  i32 counter_begin;
  i32 reserved;
};

/// State row of (first fused row of the merge, head h): state_row + (h - head_begin) * head_stride.
struct StateRef {
  i32 state_row;
  i32 head_stride;
};

static_assert(sizeof(RowBlock) == 64 && sizeof(Piece) == 20 && sizeof(Run) == 48, "plan layout");
static_assert(sizeof(WorkerStart) == 48 && sizeof(Slice) == 12 && sizeof(Merge) == 32 &&
                  sizeof(StateRef) == 8,
              "plan layout");
static_assert(sizeof(ClassHeader) == 32 && sizeof(GroupHeader) == 96 + 4 * 32, "plan layout");

}  // namespace plait::device
