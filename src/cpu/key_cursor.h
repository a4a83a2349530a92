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
  /// Of items whose tiles are streamed, not widened into scratch: the longer, the less often
  /// fetching starts anew.
  static constexpr int kStreamTile = 1024;
  static constexpr int kAhead = kStreamAhead;

  /// Tiles have up to `most` keys. Canonical segments need kTile.
  void start(const Layer& layer, const device::Run& run, std::int32_t kv_head, int most = kTile);
  /// False when no key is left.
  bool next(const Layer& layer, KeyTile& tile);

 private:
  int take(const Layer& layer, const device::RowBlock& block, std::int32_t block_index,
           std::int32_t slot, int count, int offset);

  std::int32_t kv_head_ = 0;
  int most_ = kTile;
  std::int32_t piece_ = 0, piece_end_ = 0;
  std::int32_t slot_ = 0;  // next key of the current piece

  const void* k_rows_[kStreamTile + kAhead];
  const void* v_rows_[kStreamTile + kAhead];
  std::int32_t pos_[kStreamTile + kAhead];
  std::int32_t block_[kStreamTile + kAhead];
};

}  // namespace plait::cpu
