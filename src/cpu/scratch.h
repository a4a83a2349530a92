// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace plait::cpu {

/// Fused query rows that share one conversion of a KV tile, and the tokens of such a tile.
inline constexpr int kQueryTile = 64;
inline constexpr int kKvTile = 64;

/// What one thread needs to attend one item at a time: buffers carved from the workspace.
struct Scratch {
  float* q = nullptr;       // [kQueryTile][pad_qk]
  float* q_t = nullptr;     // [pad_qk][kQueryTile]
  float* k = nullptr;       // [kKvTile][pad_qk]
  float* v = nullptr;       // [kKvTile][pad_vo]
  float* s = nullptr;       // [kKvTile][kQueryTile]
  float* o = nullptr;       // [kQueryTile][pad_vo]
  float* folded = nullptr;  // [kQueryTile][pad_vo], earlier segments
  float* angles = nullptr;  // [pad_qk]

  /// Bytes for the largest of the given padded dims, and carving them from `memory` (64-byte
  /// aligned).
  static std::int64_t bytes(int pad_qk, int pad_vo);
  static Scratch carve(char* memory, int pad_qk, int pad_vo);
};

}  // namespace plait::cpu
