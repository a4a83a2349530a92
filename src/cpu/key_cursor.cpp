// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/key_cursor.h"

#include <algorithm>

namespace plait::cpu {

using device::Piece;
using device::RowBlock;

void KeyCursor::start(const Layer& layer, const device::Run& run, std::int32_t kv_head, int most) {
  kv_head_ = kv_head;
  most_ = most;
  piece_ = run.piece_begin;
  piece_end_ = run.piece_begin + run.num_pieces;
  if (piece_ < piece_end_) slot_ = layer.plan.piece(piece_).kv_begin;
}

/// Lists `count` keys from `slot` on at `offset` of the arrays, page by page.
int KeyCursor::take(const Layer& layer, const RowBlock& block, std::int32_t block_index,
                    std::int32_t slot, int count, int offset) {
  const char* k = layer.k.data + kv_head_ * layer.k.head_stride;
  const char* v = layer.v.data + kv_head_ * layer.v.head_stride;
  const int end = offset + count;
  if ((block.flags & device::kBlockRagged) != 0) {
    for (int i = offset; i < end; ++i, ++slot) {
      const std::int64_t token = std::int64_t{block.page_begin} + slot;
      k_rows_[i] = k + token * layer.k.page_stride;
      v_rows_[i] = v + token * layer.v.page_stride;
      pos_[i] = block.base_pos + slot;
      block_[i] = block_index;
    }
    return end;
  }
  const std::int32_t page_size = layer.spec->page_size;
  const ListView& ids = layer.page_ids[static_cast<std::size_t>(block.view)];
  const bool listed = (block.flags & device::kBlockHasPositions) != 0;
  for (int i = offset; i < end;) {
    const std::int64_t entry = std::int64_t{block.page_begin} + slot / page_size;
    const std::int32_t first = slot % page_size;
    const int stop = std::min(end, i + (page_size - first));
    const std::int64_t page = ids[entry];
    const std::int32_t base =
        listed ? layer.positions[static_cast<std::size_t>(block.view)][entry] + first
               : block.base_pos + slot;
    const char* k_row = k + page * layer.k.page_stride + first * layer.k.token_stride;
    const char* v_row = v + page * layer.v.page_stride + first * layer.v.token_stride;
    slot += stop - i;
    for (std::int32_t pos = base; i < stop; ++i, ++pos) {
      k_rows_[i] = k_row;
      v_rows_[i] = v_row;
      pos_[i] = pos;
      block_[i] = block_index;
      k_row += layer.k.token_stride;
      v_row += layer.v.token_stride;
    }
  }
  return end;
}

bool KeyCursor::next(const Layer& layer, KeyTile& tile) {
  const std::int32_t segment_tokens = layer.plan.header->segment_tokens;
  tile = KeyTile{};
  tile.full = true;
  std::int64_t tile_end = 0;  // of the segments' coordinate
  int count = 0;
  while (piece_ < piece_end_) {
    const Piece& piece = layer.plan.piece(piece_);
    const RowBlock& block = layer.plan.block(piece.block);
    if (slot_ >= piece.kv_end) {
      if (++piece_ < piece_end_) slot_ = layer.plan.piece(piece_).kv_begin;
      if (count > 0 && segment_tokens == 0) break;
      continue;
    }
    int take_count = std::min(most_ - count, piece.kv_end - slot_);
    if (segment_tokens > 0) {
      const bool listed = (block.flags & device::kBlockHasPositions) != 0;
      const std::int64_t coordinate = listed ? slot_ : std::int64_t{block.base_pos} + slot_;
      if (count == 0) {
        tile_end = (coordinate / kTile + 1) * kTile;
        tile.segment = static_cast<std::int32_t>(coordinate / segment_tokens);
      } else if (coordinate >= tile_end) {
        break;
      }
      take_count = static_cast<int>(std::min<std::int64_t>(take_count, tile_end - coordinate));
    }
    tile.full = tile.full && piece.full_begin <= slot_ && slot_ + take_count <= piece.full_end;
    tile.custom_mask = tile.custom_mask || (block.flags & device::kBlockCustomMask) != 0;
    count = take(layer, block, piece.block, slot_, take_count, count);
    slot_ += take_count;
    if (segment_tokens == 0) {
      tile.ahead = std::min(kAhead, piece.kv_end - slot_);
      take(layer, block, piece.block, slot_, tile.ahead, count);
      break;
    }
    if (count == most_) break;
  }
  tile.count = count;
  tile.k_rows = k_rows_;
  tile.v_rows = v_rows_;
  tile.pos = pos_;
  tile.block = block_;
  return count > 0;
}

}  // namespace plait::cpu
