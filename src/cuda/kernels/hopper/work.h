// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The plan as the hopper kernels see it: a worker's slices, resolved to everything an item needs.
#pragma once

#include "core/device/plan_layout.h"
#include "cuda/kernels/device/element.h"
#include "cuda/kernels/device/grid_dependency.h"
#include "cuda/kernels/device/plan_prefetch.h"
#include "cuda/kernels/device/ptx_sm90.h"
#include "cuda/kernels/hopper/params.h"

namespace plait::device::hopper {

using Params = AttentionParams;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// Two elements of the kernel's type, `low` in the low half.
template <class C>
PLAIT_DEVICE u32 pack(float low, float high) {
  return Element<C::kElement>::narrow_pair(low, high);
}

/// `count` items that differ in the KV head only. What is read together lies together: loads of 16
/// bytes.
struct alignas(16) Work {
  i32 kv_begin, kv_end;  // slots
  i32 full_begin;
  i32 full_end;  // slots below it (and from full_begin on) need no mask
  i32 fused_row_begin, num_fused_rows;
  i32 pos_offset;        // add to a query row (affine) or to its table entry (row_pos) to get its
                         // position in slots of this list
  i32 list_end;          // slots of the item's whole list
  const i32* row_pos;    // logical positions of all query rows, or null: affine
  const i32* positions;  // logical positions of the list's pages, or null: affine
  i32 head, count;       // first KV head
  i32 state_row;         // of (head, first fused row); -1: writes the output
  i32 num_merges, merge_begin;
  i32 view;
  i32 request;     // or the first of several
  i32 page_begin;  // paged: first entry of the page list; ragged: first token
};

/// Tells the compiler that all lanes of a warp hold one value: loop counters and ring positions
/// that derive from it stay in uniform registers, where matrix descriptors are wanted.
PLAIT_DEVICE i32 warp_uniform(i32 value) { return __shfl_sync(~0U, value, 0); }

PLAIT_DEVICE const GroupHeader& group_header(const Params& p) {
  return *reinterpret_cast<const GroupHeader*>(p.plan + group_header_offset(p.group));
}

/// Where this CTA's work begins: of no slices if it has none.
PLAIT_DEVICE WorkerStart worker_start(const Params& p) {
  const GroupHeader& g = group_header(p);
  const ClassHeader& c = g.classes[p.class_index];
  const i32 worker = static_cast<i32>(blockIdx.x);
  if (p.class_index >= g.num_classes || worker >= c.num_workers) return WorkerStart{};
  return reinterpret_cast<const WorkerStart*>(p.plan + c.start_offset)[worker];
}

/// Tokens of K and V that a worker of this launch reads, about. Of a launch with work.
PLAIT_DEVICE i32 share_of_tokens(const Params& p) {
  return group_header(p).classes[p.class_index].kv_tokens;
}

/// Slices of worker `worker` of this launch's class: [first, last).
struct SliceRange {
  i32 first, last;
};
PLAIT_DEVICE SliceRange worker_slices(const Params& p, i32 worker) {
  const GroupHeader& g = group_header(p);
  const ClassHeader& c = g.classes[p.class_index];
  if (p.class_index >= g.num_classes || worker >= c.num_workers) return {0, 0};
  const i32* indptr = p.plan + c.worker_offset + worker;
  return {warp_uniform(indptr[0]), warp_uniform(indptr[1])};
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
  w.kv_begin = w.kv_end = w.full_begin = w.full_end = w.list_end = 0;
  w.view = w.page_begin = w.pos_offset = w.request = 0;
  w.row_pos = nullptr;
  w.positions = nullptr;
  if (run.num_pieces > 0) {
    const Piece& piece = reinterpret_cast<const Piece*>(p.plan + g.piece_offset)[run.piece_begin];
    const RowBlock& block = reinterpret_cast<const RowBlock*>(p.plan + g.block_offset)[piece.block];
    w.kv_begin = piece.kv_begin;
    w.kv_end = piece.kv_end;
    w.full_begin = piece.full_begin;
    w.full_end = piece.full_end;
    w.list_end = block.num_slots;
    w.view = block.view;
    w.request = block.request;
    w.page_begin = block.page_begin;
    i32 base = block.base_pos;
    if ((block.flags & kBlockHasPositions) != 0) {
      w.positions = p.positions[block.view] + block.page_begin;
      base = 0;
    }
    if ((block.flags & kBlockSpansRequests) != 0) {
      w.row_pos = p.plan + g.row_pos_offset;
      w.pos_offset = -base;
    } else {
      w.pos_offset = block.pos0 - block.row_begin - base;
    }
  }
  return w;
}

/// A worker's works in shared memory. Readers keep references: an item's fields are needed rarely,
/// and registers are scarce.
template <i32 kCached, i32 kWarps, i32 kReaders = 1>
struct WorkTable {
  // The last ones, two per warp and reader in it, for works past the cached ones.
  Work works[kCached + 2 * kWarps * kReaders];

  /// By `threads` threads (ranks 0 .. threads - 1), before a barrier of all readers.
  PLAIT_DEVICE void fill(const Params& p, SliceRange slices, i32 rank, i32 threads) {
    for (i32 i = rank; i < min_of(kCached, slices.last - slices.first); i += threads) {
      works[i] = load_work(p, slices.first + i);
    }
  }
  /// By whole warps. The work stays valid until `reader` asks for that of index + 2 or later.
  PLAIT_DEVICE const Work& get(const Params& p, SliceRange slices, i32 index, i32 reader = 0) {
    const i32 at = index - slices.first;
    return at < kCached ? works[warp_uniform(at)] : resolve(p, index, reader);
  }
  /// The same, whether the table is filled or not.
  PLAIT_DEVICE const Work& resolve(const Params& p, i32 index, i32 reader) {
    Work& own = works[own_entry(index, reader)];
    __syncwarp();
    if ((threadIdx.x & 31) == 0) own = load_work(p, index);
    __syncwarp();
    return own;
  }
  /// The same of a worker's first work, as far as copies of its keys need it.
  PLAIT_DEVICE const Work& begin(const WorkerStart& start, i32 reader) {
    Work& own = works[own_entry(start.first_slice, reader)];
    if ((threadIdx.x & 31) == 0) {
      own.head = start.head;
      own.count = start.count;
      own.kv_begin = start.kv_begin;
      own.kv_end = start.kv_end;
      own.list_end = start.list_end;
      own.page_begin = start.page_begin;
      own.view = start.view;
      own.request = start.request;
    }
    __syncwarp();
    return own;
  }

 private:
  PLAIT_DEVICE static i32 own_entry(i32 index, i32 reader) {
    const i32 warp = static_cast<i32>(threadIdx.x) / 32;
    return warp_uniform(kCached + (warp * kReaders + reader) * 2 + (index & 1));
  }
};

/// Query heads per KV head, a compile-time constant where the kernel was specialised for it.
template <class C>
PLAIT_DEVICE i32 group_size(const Params& p) {
  return C::kGroupSize > 0 ? C::kGroupSize : p.group_size;
}
/// Row of q and o, and query head, of a fused row.
struct RowHead {
  i32 row, head;
};
template <class C>
PLAIT_DEVICE RowHead row_head(const Params& p, i32 fused_row, i32 kv_head) {
  const i32 group = group_size<C>(p);
  return {fused_row / group, kv_head * group + fused_row % group};
}

template <class C>
PLAIT_DEVICE i32 page_size(const Params& p) {
  return C::kPageSize > 0 ? C::kPageSize : p.page_size;
}

PLAIT_DEVICE bool is_page_id(const Params& p, i32 id) {
  return static_cast<u64>(static_cast<i64>(id)) < static_cast<u64>(p.pool_extent);
}
/// Whether a page id is one of the pool; else the host is told.
PLAIT_DEVICE bool check_page_id(const Params& p, const Work& w, i32 id) {
  if (is_page_id(p, id)) return true;
  atomicOr(&p.status->bits, static_cast<u32>(kStatusBadPageId));
  p.status->request = static_cast<u32>(w.request);
  p.status->page_id = id;
  return false;
}
/// Page id `entry` of the item's list; -1, which no box is copied from, if it is outside the pool.
PLAIT_DEVICE i32 load_page_id(const Params& p, const Work& w, i32 entry) {
  const i32 id = __ldg(p.page_ids[w.view] + w.page_begin + entry);
  return check_page_id(p, w, id) ? id : -1;
}

PLAIT_DEVICE float k_scale(const Params& p, i32 kv_head) {
  return p.k_scales == nullptr ? p.k_scale : __ldg(p.k_scales + kv_head);
}
PLAIT_DEVICE float v_scale(const Params& p, i32 kv_head) {
  return p.v_scales == nullptr ? p.v_scale : __ldg(p.v_scales + kv_head);
}

/// Measured kernels: called by all threads of the CTA as they start and as they end.
PLAIT_DEVICE void record_worker_begin(const Params& p) {
  if (threadIdx.x == 0 && p.worker_times != nullptr) {
    p.worker_times[2 * blockIdx.x] = global_nanoseconds();
  }
}
PLAIT_DEVICE void record_worker_end(const Params& p) {
  __syncthreads();
  if (threadIdx.x == 0 && p.worker_times != nullptr) {
    p.worker_times[2 * blockIdx.x + 1] = global_nanoseconds();
  }
}

/// Logical position of a query row, relative to that of slot 0 (lists with positions: absolute).
PLAIT_DEVICE i32 row_position(const Work& w, i32 q_row) {
  return w.pos_offset + (w.row_pos != nullptr ? __ldg(w.row_pos + q_row) : q_row);
}

/// First slot of the item whose key is at logical position `position` or later. Positions of a list
/// increase strictly, so that what a row sees is a range of slots for such lists too.
template <class C>
PLAIT_DEVICE i32 first_slot_at(const Params& p, const Work& w, i32 position) {
  if (w.positions == nullptr) return position;
  const i32 page = page_size<C>(p);
  i32 low = w.kv_begin / page;
  i32 high = ceil_div(w.kv_end, page);
  const i32 first = low;
  while (low < high) {  // to the first page that starts at `position` or later
    const i32 middle = (low + high) / 2;
    if (__ldg(w.positions + middle) < position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == first) return low * page;
  return (low - 1) * page + min_of(page, position - __ldg(w.positions + low - 1));
}

/// Slots [begin, end) of an item that query row `q_row` sees.
struct SlotRange {
  i32 begin, end;
};
template <class C>
PLAIT_DEVICE SlotRange visible_slots(const Params& p, const Work& w, i32 q_row) {
  SlotRange r{w.kv_begin, w.kv_end};
  if constexpr (C::kCausal || C::kWindow) {
    const i32 position = row_position(w, q_row);
    if constexpr (C::kCausal) r.end = min_of(r.end, first_slot_at<C>(p, w, position + 1));
    if constexpr (C::kWindow) {
      r.begin = max_of(r.begin, first_slot_at<C>(p, w, position - p.window_left));
    }
  }
  return r;
}

#endif

}  // namespace plait::device::hopper
