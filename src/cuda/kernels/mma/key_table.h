// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// From coordinates to addresses: for every key of a tile where its K and V rows start and which
// logical position it has. One thread per key does this once, ahead of the copies, so that the copy
// loop is the same for ragged rows, any page size, any strides and several pieces.
#pragma once

#include "cuda/kernels/mma/shared_plan.h"
#include "cuda/kernels/mma/work.h"

namespace plait::device::mma {

/// A key on its way: the page id has been asked for but not looked at.
struct PendingKey {
  i32 unit = 0;      // page id, or token index for ragged
  i32 in_page = -1;  // slot within the page; -1: no key
  i32 position = 0;  // logical
  i32 rope_position = 0;
};

class KeyTable {
 public:
  using C = Config;

  __device__ __forceinline__ KeyTable(const AttentionParams& params, const GroupView& group,
                                      char* shared)
      : params_(params), group_(group), shared_(shared) {}

  /// Starts the loads for key `row` of tile `t`.
  __device__ __forceinline__ PendingKey fetch(const KeyRange& range, i32 t, i32 row) const {
    PendingKey key;
    if (t >= range.num_tiles) return key;
    const ItemFacts& item = facts();
    const i32 coordinate = range.begin + t * C::kKvTile + row;
    if constexpr (C::kCanonical) {
      for (i32 i = 0; i < item.run.num_pieces; ++i) {
        const Piece& piece = group_.piece(item.run.piece_begin + i);
        const RowBlock& block = group_.block(piece.block);
        const i32 slot = coordinate - coordinate_bias(block);
        if (slot >= piece.kv_begin && slot < piece.kv_end) locate(block, slot, &key);
      }
    } else if (coordinate < item.piece.kv_end) {
      locate(item.block, coordinate, &key);
    }
    return key;
  }

  /// Checks the page id and publishes the key in table stage `stage`.
  __device__ __forceinline__ void store(const PendingKey& key, i32 stage, i32 row,
                                        i32 serial) const {
    KeyRow entry{KeyRow::kAbsent, KeyRow::kAbsent};
    i32 position = kNoPosition;
    if (key.in_page >= 0) {
      if (key.unit < 0 || key.unit >= params_.pool_extent) {
        report(key.unit, serial);
      } else {
        const i64 unit = key.unit;
        const i64 slot = key.in_page;
        if constexpr (C::kPaged) {
          entry.k = (unit * params_.k_stride_page + slot * params_.k_stride_slot) * C::kKvSize;
          entry.v = (unit * params_.v_stride_page + slot * params_.v_stride_slot) * C::kKvSize;
        } else {
          entry.k = unit * params_.k_stride_slot * C::kKvSize;
          entry.v = unit * params_.v_stride_slot * C::kKvSize;
        }
        position = key.position;
      }
    }
    const i32 at = stage * C::kKvTile + row;
    reinterpret_cast<KeyRow*>(shared_ + SharedPlan::key_rows)[at] = entry;
    reinterpret_cast<i32*>(shared_ + SharedPlan::positions)[at] = position;
    if constexpr (C::kRope) {
      reinterpret_cast<i32*>(shared_ + SharedPlan::rope_positions)[at] = key.rope_position;
    }
  }

  /// Position of a slot without a key; larger than any limit a row can have.
  static constexpr i32 kNoPosition = 0x7FFFFFFF;

 private:
  __device__ __forceinline__ void locate(const RowBlock& block, i32 slot, PendingKey* key) const {
    const i32 page = slot / C::kPage;
    key->in_page = slot - page * C::kPage;
    const i64 entry = static_cast<i64>(block.page_begin) + page;
    if constexpr (C::kPaged) {
      key->unit = __ldg(params_.page_ids[block.view] + entry);
    } else {
      key->unit = static_cast<i32>(entry);
    }
    key->position = (block.flags & kBlockHasPositions) != 0
                        ? __ldg(params_.positions[block.view] + entry) + key->in_page
                        : block.base_pos + slot;
    if constexpr (C::kRope) {
      key->rope_position =
          params_.k_rope_positions != nullptr
              ? __ldg(params_.k_rope_positions + block.rope_k_begin + key->position)
              : key->position;
    }
  }

  /// A page id outside the pool: the item's rows become NaN and the host is told.
  __device__ __forceinline__ void report(i32 id, i32 serial) const {
    *const_cast<volatile i32*>(&facts().poisoned_serial) = serial;
    atomicOr(&params_.status->bits, static_cast<u32>(kStatusBadPageId));
    params_.status->request = static_cast<u32>(facts().block.request);
    params_.status->page_id = id;
  }

  __device__ __forceinline__ ItemFacts& facts() const {
    return *reinterpret_cast<ItemFacts*>(shared_ + SharedPlan::facts);
  }

  const AttentionParams& params_;
  const GroupView& group_;
  char* shared_;
};

}  // namespace plait::device::mma
