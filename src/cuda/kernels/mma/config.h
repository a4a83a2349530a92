// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Everything an `mma` attention kernel fixes at compile time, derived from the KernelConfig that the
// JIT writes from the kernel key.
//
//   tune_a   row blocks of 16 per warp (0: 1)
//   tune_b   warps that share the output columns of the same rows (0: 1); for wide values
//
// The warps of a CTA are kRowWarps x kKeyWarps x kColumnWarps. Key warps each keep their own softmax
// state over their part of every KV tile and merge at the end of an item.
#pragma once

#include "core/device/variant.h"
#include "cuda/kernels/device/element.h"

namespace plait::device::mma {

using plait::device::DTypeCode;

PLAIT_HD constexpr i32 round_up(i32 a, i32 b) { return ceil_div(a, b) * b; }

/// Row pitch in shared memory: an odd number of 16-byte words, so that eight rows at one column lie in
/// different banks (ldmatrix) without a swizzle, for every head dim.
PLAIT_HD constexpr i32 row_pitch(i32 elements, i32 element_size) {
  return (ceil_div(elements * element_size, 16) | 1) * 16;
}

/// Bytes moved per copy: the widest that divides a row; below 4 the copy goes through registers.
PLAIT_HD constexpr i32 copy_bytes(i32 row_bytes) {
  for (i32 bytes = 16; bytes > 1; bytes /= 2) {
    if (row_bytes % bytes == 0) return bytes;
  }
  return 1;
}

struct Config : KernelConfig {
  /// What the products run in: 16-bit if queries and keys agree (fp8 on either side widens exactly),
  /// else f32 on the CUDA cores.
  static constexpr bool kQFp8 = kIsFp8<kQDtype>;
  static constexpr bool kKvFp8 = kIsFp8<kKvDtype>;
  static constexpr DTypeCode kCompute =
      kQFp8 && kKvFp8            ? DTypeCode::kBF16
      : kQFp8                    ? kKvDtype
      : kKvFp8                   ? kQDtype
      : kQDtype == kKvDtype      ? kQDtype
                                 : DTypeCode::kF32;
  static constexpr bool kTensorCores = kCompute != DTypeCode::kF32;
  static constexpr i32 kComputeSize = kSizeOf<kCompute>;
  static constexpr i32 kKvSize = kSizeOf<kKvDtype>;

  static constexpr i32 kRowBlocks = kTuneA == 0 ? 1 : kTuneA;
  static constexpr i32 kColumnWarps = kTuneB == 0 ? 1 : kTuneB;
  static constexpr i32 kThreads = kWarps * 32;
  static constexpr i32 kRowWarps = kQTile / (16 * kRowBlocks);
  static constexpr i32 kKeyWarps = kWarps / (kRowWarps * kColumnWarps);
  static constexpr i32 kWarpKeys = kKvTile / kKeyWarps;
  static constexpr i32 kKeyTiles = kWarpKeys / 8;   // accumulator tiles of scores per row block
  static constexpr i32 kQkPadded = round_up(kHeadDimQk, 16);
  static constexpr i32 kVoPadded = round_up(kHeadDimVo, 16 * kColumnWarps);
  static constexpr i32 kWarpColumns = kVoPadded / kColumnWarps;
  static constexpr i32 kColumnTiles = kWarpColumns / 8;
  static constexpr i32 kRowsPerThread = 2 * kRowBlocks;

  static constexpr bool kRope = kRopeHalf || kRopeInterleaved;
  static constexpr bool kWiden = kKvDtype != kCompute;  // K and V are converted in shared memory
  static constexpr i32 kPage = kPageSize;

  // Pitches in bytes.
  static constexpr i32 kQPitch = row_pitch(kQkPadded, kComputeSize);
  static constexpr i32 kRawKPitch = row_pitch(kWiden ? kHeadDimQk : kQkPadded, kKvSize);
  static constexpr i32 kRawVPitch = row_pitch(kWiden ? kHeadDimVo : kVoPadded, kKvSize);
  static constexpr i32 kKPitch = row_pitch(kQkPadded, kComputeSize);
  static constexpr i32 kVPitch = row_pitch(kVoPadded, kComputeSize);

  static_assert(kQTile % (16 * kRowBlocks) == 0 && kQTile <= kThreads);
  static_assert(kRowWarps * kKeyWarps * kColumnWarps == kWarps && kWarps <= 32);
  static_assert(kKvTile % kKeyWarps == 0 && kWarpKeys % 16 == 0 && kKvTile <= kThreads);
  static_assert(kStages >= 1 && kPage >= 1 && kGroupSize >= 1);
  static_assert(kTensorCores || kRowBlocks == 1);
  static_assert(!kCanonical || kKeyWarps == 1, "canonical bits: warps split rows only");
};

}  // namespace plait::device::mma
