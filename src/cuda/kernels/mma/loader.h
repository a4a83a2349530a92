// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Global to shared memory: rows of K and V through the key table, rows of Q by fused row.
#pragma once

#include "cuda/kernels/device/ptx_sm80.h"
#include "cuda/kernels/device/rope_angle.h"
#include "cuda/kernels/mma/config.h"
#include "cuda/kernels/mma/hooks.h"
#include "cuda/kernels/mma/work.h"

namespace plait::device::mma {

/// Which of K and V a copy takes from a KeyRow.
enum class Side { kKeys, kValues };

/// Copies rows of one side of a tile, in units of copy_bytes; absent keys become zeros.
template <Side kSide, bool kComplete>
struct RowCopy {
  using C = Config;
  static constexpr i32 kRowBytes =
      (kSide == Side::kKeys ? C::kHeadDimQk : C::kHeadDimVo) * C::kKvSize;
  static constexpr i32 kBytes = copy_bytes(kRowBytes);
  static constexpr i32 kPerRow = kRowBytes / kBytes;
  static constexpr i32 kPitch =
      kSide == Side::kKeys ? C::kShared.raw_k_pitch : C::kShared.raw_v_pitch;
  static constexpr i32 kTileOffset = kSide == Side::kKeys ? 0 : C::kShared.raw_k_bytes;

  static __device__ __forceinline__ void copy(char* stage, const KeyRow& key, u32 row, u32 column) {
    const u64 source = kSide == Side::kKeys ? key.k : key.v;
    const u32 offset = kTileOffset + row * kPitch + column;
    if constexpr (kBytes >= 4) {
      if constexpr (kComplete) {
        copy_async<kBytes>(shared_address(stage) + offset, source + column);
      } else {
        copy_async<kBytes>(shared_address(stage) + offset,
                           reinterpret_cast<const void*>(source + column), source != 0);
      }
    } else if constexpr (kBytes == 2) {
      *reinterpret_cast<u16*>(stage + offset) =
          source != 0 ? __ldg(reinterpret_cast<const u16*>(source + column)) : u16{0};
    } else {
      *reinterpret_cast<u8*>(stage + offset) =
          source != 0 ? __ldg(reinterpret_cast<const u8*>(source + column)) : u8{0};
    }
  }
};

/// K and V of one tile. `keys`: its rows of the key table. kComplete: none is absent.
template <bool kComplete>
__device__ __forceinline__ void load_key_tile(char* stage, const KeyRow* keys) {
  using C = Config;
  using K = RowCopy<Side::kKeys, kComplete>;
  using V = RowCopy<Side::kValues, kComplete>;
  const u32 thread = static_cast<u32>(fresh_thread_index());
  if constexpr (K::kRowBytes == V::kRowBytes && C::kThreads % K::kPerRow == 0 &&
                C::kKvTile % (C::kThreads / K::kPerRow) == 0) {
    // Every thread keeps its column; one entry of the table serves K and V.
    constexpr u32 kStep = C::kThreads / K::kPerRow;
    const u32 first = thread / K::kPerRow;
    const u32 column = thread % K::kPerRow * K::kBytes;
    // Entries are read some at a time: a read of shared memory between two copies makes them wait.
    constexpr u32 kCount = C::kKvTile / kStep;
    constexpr u32 kBatch = kCount % 4 == 0 ? 4 : 1;
#pragma unroll
    for (u32 i = 0; i < kCount; i += kBatch) {
      KeyRow key[kBatch];
#pragma unroll
      for (u32 j = 0; j < kBatch; ++j) key[j] = keys[first + (i + j) * kStep];
#pragma unroll
      for (u32 j = 0; j < kBatch; ++j) {
        K::copy(stage, key[j], first + (i + j) * kStep, column);
        V::copy(stage, key[j], first + (i + j) * kStep, column);
      }
    }
  } else {
#pragma unroll 4
    for (u32 i = thread; i < C::kKvTile * K::kPerRow; i += C::kThreads) {
      K::copy(stage, keys[i / K::kPerRow], i / K::kPerRow, i % K::kPerRow * K::kBytes);
    }
#pragma unroll 4
    for (u32 i = thread; i < C::kKvTile * V::kPerRow; i += C::kThreads) {
      V::copy(stage, keys[i / V::kPerRow], i / V::kPerRow, i % V::kPerRow * V::kBytes);
    }
  }
}

/// Rows that start anywhere: an element at a time, without asynchrony.
template <Side kSide>
__device__ __forceinline__ void load_rows_by_elements(char* stage, const KeyRow* keys) {
  using C = Config;
  using Copy = RowCopy<kSide, false>;
  using Word = typename Element<C::kKvDtype>::Word;
  constexpr u32 kDim = Copy::kRowBytes / C::kKvSize;
  for (u32 i = threadIdx.x; i < C::kKvTile * kDim; i += C::kThreads) {
    const u32 row = i / kDim;
    const u32 dim = i % kDim;
    const u64 source = kSide == Side::kKeys ? keys[row].k : keys[row].v;
    reinterpret_cast<Word*>(stage + Copy::kTileOffset + row * Copy::kPitch)[dim] =
        source != 0 ? reinterpret_cast<const Word*>(source)[dim] : Word{0};
  }
}

/// Whether every row of K and V may be moved by copies of copy_bytes.
__device__ __forceinline__ bool keys_are_aligned(const AttentionParams& p) {
  using C = Config;
  const i64 k = (p.k_stride_page | p.k_stride_slot | p.k_stride_head) * C::kKvSize |
                static_cast<i64>(reinterpret_cast<u64>(p.k));
  const i64 v = (p.v_stride_page | p.v_stride_slot | p.v_stride_head) * C::kKvSize |
                static_cast<i64>(reinterpret_cast<u64>(p.v));
  return k % RowCopy<Side::kKeys, true>::kBytes == 0 &&
         v % RowCopy<Side::kValues, true>::kBytes == 0;
}

/// Tiles with absent keys, and rows that copies cannot move. A call, so that its registers and code
/// are not the main loop's.
static __device__ __noinline__ void load_unusual_tile(const AttentionParams& p, char* stage,
                                                      const KeyRow* keys) {
  if (keys_are_aligned(p)) {
    load_key_tile<false>(stage, keys);
  } else {
    load_rows_by_elements<Side::kKeys>(stage, keys);
    load_rows_by_elements<Side::kValues>(stage, keys);
  }
}

/// Zeroes bytes [kUsed, kPadded) of every row: the products read them, copies never write them.
template <i32 kUsed, i32 kPadded, i32 kPitch>
__device__ __forceinline__ void clear_padding(char* tile, i32 rows) {
  if constexpr (kUsed < kPadded) {
    constexpr i32 kPerRow = kPadded - kUsed;
    for (i32 i = static_cast<i32>(threadIdx.x); i < rows * kPerRow; i += Config::kThreads) {
      tile[i / kPerRow * kPitch + kUsed + i % kPerRow] = 0;
    }
  }
}

/// The query rows of an item into the Q tile: fused row f is query row f / g of head
/// kv_head * g + f % g. Rows beyond the item become zeros.
struct QueryLoader {
  using C = Config;
  static constexpr i32 kQSize = kSizeOf<C::kQDtype>;
  static constexpr bool kPlainCopy = C::kQDtype == C::kCompute && !C::kRope && !Hooks::kHasQuery &&
                                     copy_bytes(C::kHeadDimQk * kQSize) >= 4;

  static __device__ __forceinline__ bool is_aligned(const AttentionParams& p) {
    const i64 bits =
        (p.q_stride_row | p.q_stride_head) * kQSize | static_cast<i64>(reinterpret_cast<u64>(p.q));
    return bits % copy_bytes(C::kHeadDimQk * kQSize) == 0;
  }

  static __device__ __forceinline__ const char* row_address(const AttentionParams& p, i32 fused,
                                                            i32 kv_head) {
    const i32 row = fused / C::kGroupSize;
    const i32 head = kv_head * C::kGroupSize + (fused - row * C::kGroupSize);
    return static_cast<const char*>(p.q) + (row * p.q_stride_row + head * p.q_stride_head) * kQSize;
  }

  static __device__ __forceinline__ void load(const AttentionParams& p, char* shared) {
    const ItemFacts& facts = *reinterpret_cast<const ItemFacts*>(shared + C::kShared.facts);
    const Run& run = facts.run;
    const i32 kv_head = facts.kv_head;
    if (kPlainCopy && facts.q_aligned != 0) {
      constexpr i32 kBytes = copy_bytes(C::kHeadDimQk * kQSize);
      constexpr i32 kPerRow = C::kHeadDimQk * kQSize / kBytes;
      constexpr i32 kTotal = C::kQTile * kPerRow;
      const u32 tile = shared_address(shared + C::kShared.q);
      const i32 thread = fresh_thread_index();
#pragma unroll
      for (i32 i = 0; i < ceil_div(kTotal, C::kThreads); ++i) {
        const i32 index = thread + i * C::kThreads;
        if (kTotal % C::kThreads != 0 && index >= kTotal) break;
        const i32 row = index / kPerRow;
        const i32 column = (index - row * kPerRow) * kBytes;
        const bool valid = row < run.num_fused_rows;
        const char* source = row_address(p, run.fused_row_begin + (valid ? row : 0), kv_head);
        copy_async<max_of(kBytes, 4)>(tile + static_cast<u32>(row * C::kShared.q_pitch + column),
                                      source + column, valid);
      }
    } else {
      load_transformed(p, shared);
    }
  }

 private:
  using In = Element<C::kQDtype>;
  using Out = Element<C::kCompute>;

  static __device__ __noinline__ void load_transformed(const AttentionParams& p, char* shared) {
    const GroupView group(p);
    const ItemFacts& facts = *reinterpret_cast<const ItemFacts*>(shared + C::kShared.facts);
    const Run& run = facts.run;
    const RowBlock& block = facts.block;
    const i32 kv_head = facts.kv_head;
    for (i32 i = static_cast<i32>(threadIdx.x); i < C::kQTile * C::kHeadDimQk; i += C::kThreads) {
      const i32 local = i / C::kHeadDimQk;
      const i32 dim = i - local * C::kHeadDimQk;
      float x = 0.0F;
      if (local < run.num_fused_rows) {
        const i32 fused = run.fused_row_begin + local;
        const i32 row = fused / C::kGroupSize;
        const auto* source =
            reinterpret_cast<const typename In::Word*>(row_address(p, fused, kv_head));
        x = In::widen(source[dim]);
        const i32 position = query_position(group, block, row);
        if constexpr (C::kRope) {
          const i32 rope_position =
              p.q_rope_positions != nullptr ? __ldg(p.q_rope_positions + row) : position;
          x = rotated(p, x, source, dim, rope_position);
        }
        if constexpr (Hooks::kHasQuery) {
          const bool spans = (block.flags & kBlockSpansRequests) != 0;
          const i32 request = spans ? request_of_row(group, block.request, row) : block.request;
          const i32 head = kv_head * C::kGroupSize + fused % C::kGroupSize;
          x = Hooks::query(x, VectorSite{request, position, head, dim}, p);
        }
      }
      *reinterpret_cast<typename Out::Word*>(shared + C::kShared.q + local * C::kShared.q_pitch +
                                             dim * C::kComputeSize) = Out::narrow(x);
    }
  }

  static __device__ __forceinline__ float rotated(const AttentionParams& p, float x,
                                                  const typename In::Word* source, i32 dim,
                                                  i32 position) {
    if (dim >= p.rotary_dim) return x;
    const RopePair at = rope_pair(dim, p.rotary_dim);
    const float other = In::widen(source[at.other]);
    const Rotation r = rotation_at(p.rope_turns, at.index, position);
    return at.second ? x * r.cosine + other * r.sine : x * r.cosine - other * r.sine;
  }
};

}  // namespace plait::device::mma
