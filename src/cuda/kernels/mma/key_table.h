// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// From coordinates to addresses: for every key of a tile where its K and V rows start and which
// logical position it has. One thread per key does this once, ahead of the copies, so that the copy
// loop is the same for ragged rows, any page size, any strides and several pieces.
#pragma once

#include "cuda/kernels/mma/config.h"
#include "cuda/kernels/mma/work.h"

namespace plait::device::mma {

/// A key on its way: what memory was asked for but not looked at. The rest is computed again when
/// it arrives; registers are scarcer than arithmetic.
struct PendingKey {
  i32 unit = 0;           // page id, or token index for ragged
  i32 page_position = 0;  // logical position of the page's first token, where positions are listed
  i32 rope_position = 0;
};

/// A slot of a row block.
struct KeySlot {
  const RowBlock* block = nullptr;  // null: no key
  i32 slot = 0;
};

class KeyTable {
 public:
  using C = Config;

  __device__ __forceinline__ KeyTable(const AttentionParams& params, char* shared)
      : params_(params), shared_(shared) {}

  /// Starts the loads for the item's key number `index`, in the order of its tiles.
  __device__ __forceinline__ PendingKey fetch(i32 index) const {
    PendingKey key;
    const KeySlot at = find(index);
    if (at.block == nullptr) return key;
    const RowBlock& block = *at.block;
    const i32 page = block.page_begin + at.slot / C::kPage;
    key.unit = C::kPaged ? __ldg(params_.page_ids[block.view] + page) : page;
    if ((block.flags & kBlockHasPositions) != 0) {
      key.page_position = __ldg(params_.positions[block.view] + page);
    }
    if constexpr (C::kRope) {
      // Listed positions would make this a load behind a load; it is waited for here, then.
      key.rope_position = position_of(key, at);
      // Positions known at run time may lie outside the request, where the operand has no entry.
      if (params_.k_rope_positions != nullptr &&
          static_cast<u32>(key.rope_position) < static_cast<u32>(block.kv_len)) {
        key.rope_position =
            __ldg(params_.k_rope_positions + block.rope_k_begin + key.rope_position);
      }
    }
    return key;
  }

  /// Checks the page id of key `index` and publishes the key.
  __device__ __forceinline__ void store(const PendingKey& key, i32 index) const {
    KeyRow entry{0, 0};
    i32 position = kNoPosition;
    const KeySlot at = find(index);
    if (at.block != nullptr) {
      i64 unit = key.unit;
      if (unit < 0 || unit >= params_.pool_extent) {
        report(key.unit);
        unit = 0;  // somewhere that can be read; the result is NaN whatever is there
      }
      const i64 slot = C::kPaged ? at.slot % C::kPage : 0;
      const i64 head = facts().kv_head;
      const i64 k = (C::kPaged ? unit * params_.k_stride_page + slot * params_.k_stride_slot
                               : unit * params_.k_stride_slot) +
                    head * params_.k_stride_head;
      const i64 v = (C::kPaged ? unit * params_.v_stride_page + slot * params_.v_stride_slot
                               : unit * params_.v_stride_slot) +
                    head * params_.v_stride_head;
      entry.k = reinterpret_cast<u64>(params_.k) + static_cast<u64>(k * C::kKvSize);
      entry.v = reinterpret_cast<u64>(params_.v) + static_cast<u64>(v * C::kKvSize);
      position = position_of(key, at);
    }
    index %= C::kKeyRing;
    reinterpret_cast<KeyRow*>(shared_ + C::kShared.key_rows)[index] = entry;
    reinterpret_cast<i32*>(shared_ + C::kShared.positions)[index] = position;
    if constexpr (C::kRope) {
      reinterpret_cast<i32*>(shared_ + C::kShared.rope_positions)[index] = key.rope_position;
    }
  }

  /// A page id outside the pool: the item's rows become NaN and the host is told.
  __device__ __forceinline__ void report(i32 id) const {
    *const_cast<volatile i32*>(&facts().poisoned_serial) = facts().serial;
    atomicOr(&params_.status->bits, static_cast<u32>(kStatusBadPageId));
    params_.status->request = static_cast<u32>(facts().block.request);
    params_.status->page_id = id;
  }

  /// Position of a slot without a key; larger than any limit a row can have.
  static constexpr i32 kNoPosition = 0x7FFFFFFF;

 private:
  __device__ __forceinline__ KeySlot find(i32 index) const {
    const ItemFacts& item = facts();
    if (index >= item.tiles.all * C::kKvTile) return {};
    const i32 tile = tile_at(item.tiles, index / C::kKvTile);
    const i32 coordinate = item.key_begin + tile * C::kKvTile + index % C::kKvTile;
    if constexpr (C::kCanonical) {
      const GroupView group(params_);
      for (i32 i = 0; i < item.run.num_pieces; ++i) {
        const Piece& piece = group.piece(item.run.piece_begin + i);
        const RowBlock& block = group.block(piece.block);
        const i32 slot = coordinate - coordinate_bias(block);
        if (slot >= piece.kv_begin && slot < piece.kv_end) return {&block, slot};
      }
      return {};
    } else {
      if (coordinate >= item.piece.kv_end) return {};
      return {&item.block, coordinate};
    }
  }

  static __device__ __forceinline__ i32 position_of(const PendingKey& key, const KeySlot& at) {
    return (at.block->flags & kBlockHasPositions) != 0 ? key.page_position + at.slot % C::kPage
                                                       : at.block->base_pos + at.slot;
  }

  __device__ __forceinline__ ItemFacts& facts() const {
    return *reinterpret_cast<ItemFacts*>(shared_ + C::kShared.facts);
  }

  const AttentionParams& params_;
  char* shared_;
};

}  // namespace plait::device::mma
