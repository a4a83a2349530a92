// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The plan as a worker reads it: slices -> runs -> items, and an item's keys as a sequence of
// tiles.
#pragma once

#include "core/device/plan_layout.h"
#include "cuda/kernels/common/params.h"
#include "cuda/kernels/device/ptx_sm80.h"
#include "cuda/kernels/mma/config.h"

namespace plait::device::mma {

template <class T>
__device__ __forceinline__ const T* plan_array(const i32* plan, i32 offset) {
  return reinterpret_cast<const T*>(plan + offset);
}

/// group_header_offset, not known while the kernel is compiled: a known one makes ptxas schedule
/// the loops under a soft cap worse, which cost 5 %.
__device__ __forceinline__ i32 header_offset(i32 group) {
  i32 offset = group_header_offset(group);
  asm volatile("" : "+r"(offset));
  return offset;
}

struct GroupView {
  const i32* plan;
  const GroupHeader* header;

  __device__ __forceinline__ explicit GroupView(const AttentionParams& p)
      : plan(p.plan), header(plan_array<GroupHeader>(p.plan, header_offset(p.group))) {}
  __device__ __forceinline__ const RowBlock& block(i32 i) const {
    return plan_array<RowBlock>(plan, header->block_offset)[i];
  }
  __device__ __forceinline__ const Piece& piece(i32 i) const {
    return plan_array<Piece>(plan, header->piece_offset)[i];
  }
  __device__ __forceinline__ const Run& run(i32 i) const {
    return plan_array<Run>(plan, header->run_offset)[i];
  }
  __device__ __forceinline__ const Merge& merge(i32 i) const {
    return plan_array<Merge>(plan, header->merge_offset)[i];
  }
  __device__ __forceinline__ const StateRef& ref(i32 i) const {
    return plan_array<StateRef>(plan, header->ref_offset)[i];
  }
};

/// Coordinate of slot 0. Under canonical segments KV tiles begin at multiples of the tile in the
/// coordinate that all views share; elsewhere the slot will do.
__device__ __forceinline__ i32 coordinate_bias(const RowBlock& block) {
  return Config::kCanonical ? block.segment_base : 0;
}

/// Copies a plan record into shared memory, a word per thread.
template <class T>
__device__ __forceinline__ void copy_record(T* target, const T& source) {
  const i32 word = fresh_thread_index() % 32;
  if (word < static_cast<i32>(sizeof(T) / 4)) {
    reinterpret_cast<i32*>(target)[word] = reinterpret_cast<const i32*>(&source)[word];
  }
}

/// An item's keys as tiles of kKvTile coordinates over its pieces.
struct KeyRange {
  i32 begin = 0;  // coordinate of the first tile's first row
  i32 num_tiles = 0;

  __device__ __forceinline__ KeyRange(const GroupView& group, const ItemFacts& facts) {
    if (facts.run.num_pieces == 0) return;
    begin = facts.piece.kv_begin + coordinate_bias(facts.block);
    i32 end = facts.piece.kv_end + coordinate_bias(facts.block);
    if constexpr (Config::kCanonical) {
      if (facts.run.num_pieces > 1) {
        const Piece& last = group.piece(facts.run.piece_begin + facts.run.num_pieces - 1);
        end = last.kv_end + coordinate_bias(group.block(last.block));
      }
      begin -= begin % Config::kKvTile;
    }
    num_tiles = max_of(0, ceil_div(end - begin, Config::kKvTile));
  }

  /// Leading tiles without an absent key; may be too few.
  __device__ __forceinline__ i32 fast_tiles(const ItemFacts& facts) const {
    if (num_tiles == 0) return 0;
    const i32 bias = coordinate_bias(facts.block);
    if (begin < facts.piece.kv_begin + bias) return 0;
    return (facts.piece.kv_end + bias - begin) / Config::kKvTile;
  }

  /// Tiles within the piece's full range.
  __device__ __forceinline__ void find_full(const ItemFacts& facts, TileCounts* tiles) const {
    tiles->full_begin = 0;
    tiles->full_end = 0;
    if (Config::kCanonical || num_tiles == 0) return;
    if (facts.piece.full_end <= facts.piece.full_begin) return;
    tiles->full_begin = ceil_div(max_of(facts.piece.full_begin - begin, 0), Config::kKvTile);
    tiles->full_end = max_of(facts.piece.full_end - begin, 0) / Config::kKvTile;
  }
};

/// Blocks without a list of positions agree on where a coordinate stands.
__device__ __forceinline__ void find_first_position(const GroupView& group, ItemFacts* facts) {
  facts->consecutive = 1;
  for (i32 i = 0; i < facts->run.num_pieces; ++i) {
    const RowBlock& block = group.block(group.piece(facts->run.piece_begin + i).block);
    if ((block.flags & kBlockHasPositions) != 0) facts->consecutive = 0;
  }
  facts->first_position = facts->key_begin - coordinate_bias(facts->block) + facts->block.base_pos;
}

/// Moves a worker's cursor to its first slice; by one thread.
__device__ __forceinline__ void open_cursor(const AttentionParams& p, ItemFacts* facts) {
  const GroupView group(p);
  facts->slice = 0;
  facts->last_slice = 0;
  facts->item = -1;
  facts->serial = 0;
  facts->poisoned_serial = 0;
  const i32 worker = static_cast<i32>(blockIdx.x);
  if (p.class_index >= group.header->num_classes) return;
  const ClassHeader& header = group.header->classes[p.class_index];
  if (worker >= header.num_workers) return;
  const i32* indptr = plan_array<i32>(p.plan, header.worker_offset);
  facts->slice = indptr[worker];
  facts->last_slice = indptr[worker + 1];
}

/// Advances to the next item and reads its records; by one whole warp. The cursor lives in shared
/// memory so that no register is held across an item.
__device__ __forceinline__ void next_item(const AttentionParams& p, ItemFacts* facts) {
  const GroupView group(p);
  const ClassHeader& header = group.header->classes[p.class_index];
  const auto* slices = plan_array<Slice>(p.plan, header.slice_offset);
  i32 index = facts->slice;
  i32 item = facts->item + 1;
  const i32 last = facts->last_slice;
  while (index < last && item >= slices[index].count) {
    ++index;
    item = 0;
  }
  __syncwarp();
  const bool leader = fresh_thread_index() % 32 == 0;
  if (index >= last) {
    if (leader) facts->item = -1;
    return;
  }
  if (item == 0) {  // else the records are those of the item before: the run's next head
    copy_record(&facts->run, group.run(slices[index].run));
    __syncwarp();
    if (facts->run.num_pieces > 0) {
      copy_record(&facts->piece, group.piece(facts->run.piece_begin));
      __syncwarp();
      copy_record(&facts->block, group.block(facts->piece.block));
    }
    __syncwarp();
  }
  if (leader) {
    const KeyRange keys(group, *facts);
    facts->slice = index;
    facts->item = item;
    facts->kv_head = facts->run.head_begin + slices[index].first + item;
    facts->key_begin = keys.begin;
    facts->tiles.all = keys.num_tiles;
    facts->tiles.fast = keys.fast_tiles(*facts);
    keys.find_full(*facts, &facts->tiles);
    if constexpr (Config::kAlibi) find_first_position(group, facts);
    ++facts->serial;
  }
}

/// Which of an item's tiles is worked off as number t.
__device__ __forceinline__ i32 tile_at(const TileCounts& tiles, i32 t) {
  return Config::kLastTileFirst ? tiles.all - 1 - t : t;
}

/// Every row of the item sees every coordinate of tile t, and each is a key.
__device__ __forceinline__ bool is_full_tile(const AttentionParams& p, const ItemFacts& facts,
                                             const TileCounts& tiles, i32 t) {
  if constexpr (Config::kCanonical) {
    const i32 first = facts.key_begin + t * Config::kKvTile;
    const i32 last = first + Config::kKvTile;
    const GroupView group(p);
    for (i32 i = 0; i < facts.run.num_pieces; ++i) {
      const Piece& piece = group.piece(facts.run.piece_begin + i);
      const i32 bias = coordinate_bias(group.block(piece.block));
      if (first >= piece.full_begin + bias && last <= piece.full_end + bias) return true;
    }
    return false;
  } else {
    return t >= tiles.full_begin && t < tiles.full_end;
  }
}

/// The request that a query row belongs to, for blocks that span several.
__device__ __forceinline__ i32 request_of_row(const GroupView& group, i32 first, i32 row) {
  const i32* indptr = plan_array<i32>(group.plan, group.header->q_indptr_offset);
  i32 low = first;
  i32 high = group.header->num_requests - 1;
  while (low < high) {
    const i32 middle = (low + high) / 2;
    if (indptr[middle + 1] > row)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/// Logical position of query row `row`.
__device__ __forceinline__ i32 query_position(const GroupView& group, const RowBlock& block,
                                              i32 row) {
  if ((block.flags & kBlockSpansRequests) != 0) {
    return plan_array<i32>(group.plan, group.header->row_pos_offset)[row];
  }
  return block.pos0 + row - block.row_begin;
}

}  // namespace plait::device::mma
