// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The plan as the hopper kernels see it: a worker's slices, resolved to everything an item needs.
#pragma once

#include "cuda/kernels/device/ptx_sm90.h"
#include "cuda/kernels/hopper/params.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// `count` items that differ in the KV head only.
struct Work {
  i32 head, count;  // first KV head
  i32 fused_row_begin, num_fused_rows;
  i32 kv_begin, kv_end;  // slots
  i32 full_end;          // slots below it (and from full_begin on) need no mask
  i32 full_begin;
  i32 view;
  i32 page_begin;      // paged: first entry of the page list; ragged: first token
  i32 pos_offset;      // add to a query row (affine) or to its table entry (row_pos) to get
                       // its position in slots of this list
  const i32* row_pos;  // logical positions of all query rows, or null: affine
  i32 state_row;       // of (head, first fused row); -1: writes the output
  i32 merge_begin, num_merges;
};

PLAIT_DEVICE const GroupHeader& group_header(const Params& p) {
  const PlanHeader& plan = *reinterpret_cast<const PlanHeader*>(p.plan);
  return *reinterpret_cast<const GroupHeader*>(p.plan + plan.group_offset[p.group]);
}

/// Slices of worker `worker` of this launch's class: [first, last).
struct SliceRange {
  i32 first, last;
};
PLAIT_DEVICE SliceRange worker_slices(const Params& p, i32 worker) {
  const ClassHeader& c = group_header(p).classes[p.class_index];
  if (worker >= c.num_workers) return {0, 0};
  const i32* indptr = p.plan + c.worker_offset + worker;
  return {indptr[0], indptr[1]};
}

PLAIT_DEVICE Work load_work(const Params& p, i32 index) {
  const GroupHeader& g = group_header(p);
  const Slice slice =
      reinterpret_cast<const Slice*>(p.plan + g.classes[p.class_index].slice_offset)[index];
  const Run& run = reinterpret_cast<const Run*>(p.plan + g.run_offset)[slice.run];
  Work w;
  w.head = run.head_begin + slice.first;
  w.count = slice.count;
  w.fused_row_begin = run.fused_row_begin;
  w.num_fused_rows = run.num_fused_rows;
  w.state_row = run.state_begin < 0 ? -1 : run.state_begin + slice.first * run.num_fused_rows;
  w.merge_begin = run.merge_begin;
  w.num_merges = run.num_merges;
  w.kv_begin = w.kv_end = w.full_begin = w.full_end = 0;
  w.view = w.page_begin = w.pos_offset = 0;
  w.row_pos = nullptr;
  if (run.num_pieces > 0) {
    const Piece& piece = reinterpret_cast<const Piece*>(p.plan + g.piece_offset)[run.piece_begin];
    const RowBlock& block = reinterpret_cast<const RowBlock*>(p.plan + g.block_offset)[piece.block];
    w.kv_begin = piece.kv_begin;
    w.kv_end = piece.kv_end;
    w.full_begin = piece.full_begin;
    w.full_end = piece.full_end;
    w.view = block.view;
    w.page_begin = block.page_begin;
    if ((block.flags & kBlockSpansRequests) != 0) {
      w.row_pos = p.plan + g.row_pos_offset;
      w.pos_offset = -block.base_pos;
    } else {
      w.pos_offset = block.pos0 - block.row_begin - block.base_pos;
    }
  }
  return w;
}

/// Slots [begin, end) of a work item that query row `q_row` sees.
struct SlotRange {
  i32 begin, end;
};
PLAIT_DEVICE SlotRange visible_slots(const Params& p, const Work& w, i32 q_row) {
  SlotRange r{w.kv_begin, w.kv_end};
  const i32 position = w.pos_offset + (w.row_pos != nullptr ? w.row_pos[q_row] : q_row);
  if (p.causal) r.end = min_of(r.end, position + 1);
  if (p.window_left >= 0) r.begin = max_of(r.begin, position - p.window_left);
  return r;
}

#endif

}  // namespace plait::device::hopper
