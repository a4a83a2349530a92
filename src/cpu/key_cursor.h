// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/kernel_table.h"
#include "cpu/layer.h"

namespace plait::cpu {

/// Keys that are scored together: where their rows lie, and their logical positions.
struct KeyTile {
  int count = 0;
  int ahead = 0;             // rows listed beyond `count`, of the following keys of the same piece
  bool full = false;         // every query row of the item sees every key
  std::int32_t segment = 0;  // canonical segment, 0 if there are none
  bool custom_mask = false;  // some key belongs to a block with a custom mask
  const void** k_rows = nullptr;
  const void** v_rows = nullptr;
  std::int32_t* pos = nullptr;
  const std::int32_t* block = nullptr;  // of each key
};

/// Walks the keys of an item's pieces tile by tile. Under canonical segments a tile begins at each
/// multiple of the tile length of the segments' coordinate and may straddle pieces.
class KeyCursor {
 public:
  static constexpr int kTile = 64;
  static constexpr int kAhead = kStreamAhead;

  void start(const Layer& layer, const device::Run& run, std::int32_t kv_head);
  /// False when no key is left.
  bool next(const Layer& layer, KeyTile& tile);

 private:
  int take(const Layer& layer, const device::RowBlock& block, std::int32_t block_index,
           std::int32_t slot, int count, int offset);

  std::int32_t kv_head_ = 0;
  std::int32_t piece_ = 0, piece_end_ = 0;
  std::int32_t slot_ = 0;  // next key of the current piece

  const void* k_rows_[kTile + kAhead];
  const void* v_rows_[kTile + kAhead];
  std::int32_t pos_[kTile + kAhead];
  std::int32_t block_[kTile + kAhead];
};

}  // namespace plait::cpu
