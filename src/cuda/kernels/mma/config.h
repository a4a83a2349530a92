// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Everything an `mma` attention kernel fixes at compile time, derived from the KernelConfig that
// the JIT writes from the kernel key.
//
//   tune_a   row blocks of 16 per warp (0: 1)
//   tune_b   warps that share the output columns of the same rows (0: 1); for wide values
//
// The warps of a CTA are kRowWarps x kKeyWarps x kColumnWarps. Key warps each keep their own
// softmax state over their part of every KV tile and merge at the end of an item.
#pragma once

#include "core/device/variant.h"
#include "cuda/kernels/device/element.h"
#include "cuda/kernels/mma/layout.h"

namespace plait::device::mma {

struct Config : KernelConfig {
  /// What the products run in: 16-bit if queries and keys agree (fp8 on either side widens
  /// exactly), else f32 on the CUDA cores.
  static constexpr bool kQFp8 = kIsFp8<kQDtype>;
  static constexpr bool kKvFp8 = kIsFp8<kKvDtype>;
  static constexpr DTypeCode kCompute = kQFp8 && kKvFp8       ? DTypeCode::kBF16
                                        : kQFp8               ? kKvDtype
                                        : kKvFp8              ? kQDtype
                                        : kQDtype == kKvDtype ? kQDtype
                                                              : DTypeCode::kF32;
  static constexpr bool kTensorCores = kCompute != DTypeCode::kF32;
  static constexpr i32 kComputeSize = kSizeOf<kCompute>;
  static constexpr i32 kKvSize = kSizeOf<kKvDtype>;

  static constexpr i32 kRowBlocks = kTuneA == 0 ? 1 : kTuneA;
  static constexpr i32 kColumnWarps = kTuneB == 0 ? 1 : kTuneB;
  static constexpr bool kRope = kRopeHalf || kRopeInterleaved;
  static constexpr bool kWiden = kKvDtype != kCompute;  // K and V are converted in shared memory
  static constexpr TileShape kShape{kQTile,       kKvTile,    kStages,    kWarps,       kRowBlocks,
                                    kColumnWarps, kHeadDimQk, kHeadDimVo, kComputeSize, kKvSize,
                                    kWiden,       kRope,      kUser,      kAlibi};
  static constexpr SharedLayout kShared = shared_layout(kShape);

  static constexpr i32 kThreads = kWarps * 32;
  static constexpr i32 kRowWarps = kShape.row_warps();
  static constexpr i32 kKeyWarps = kShape.key_warps();
  /// A tile is worked off in parts where the scores of all its keys would not fit the registers.
  static constexpr i32 kParts =
      kRowBlocks > 1 && kHeadDimVo > 64 && kKvTile / kKeyWarps > 32 ? 2 : 1;
  static constexpr i32 kWarpKeys = kKvTile / kKeyWarps / kParts;  // of a part
  static constexpr i32 kKeyTiles = kWarpKeys / 8;  // accumulator tiles of scores per row block
  static constexpr i32 kQkPadded = kShape.qk_padded();
  static constexpr i32 kVoPadded = kShape.vo_padded();
  static constexpr i32 kWarpColumns = kVoPadded / kColumnWarps;
  static constexpr i32 kColumnTiles = kWarpColumns / 8;
  static constexpr i32 kRowsPerThread = 2 * kRowBlocks;
  // The key table is made a block of kThreads keys at a time.
  static constexpr i32 kKeyRing = kKeyBlocks * kThreads;
  static constexpr i32 kTilesPerBlock = kThreads / kKvTile;
  static constexpr i32 kPage = kPageSize;
  /// ALiBi weighs the last keys most. A row that begins with them has its maximum at once, where
  /// from the first on it would rise, and rescale the outputs, in every tile. Canonical segments
  /// are folded in ascending order.
  static constexpr bool kLastTileFirst = kAlibi && !kCanonical;

  /// Shared memory of one multiprocessor.
  static constexpr i32 kSharedPerMultiprocessor =
      1024 * (PLAIT_ARCH == 80 || PLAIT_ARCH == 87                        ? 164
              : PLAIT_ARCH == 86 || PLAIT_ARCH == 89 || PLAIT_ARCH >= 120 ? 100
                                                                          : 228);
  static constexpr i32 kMinBlocks = blocks_per_multiprocessor(kShape, kSharedPerMultiprocessor);

  static_assert(kQTile % (16 * kRowBlocks) == 0 && kQTile <= kThreads);
  static_assert(kRowWarps * kKeyWarps * kColumnWarps == kWarps && kWarps <= 32);
  static_assert(kParts == 1 || kKeyWarps == 1);
  static_assert(kKvTile % (kKeyWarps * kParts) == 0 && kWarpKeys % 16 == 0 && kKvTile <= kThreads);
  static_assert(kThreads % kKvTile == 0 && kTilesPerBlock >= 2 && kStages <= 2 * kTilesPerBlock);
  static_assert(kStages >= 1 && kPage >= 1 && kGroupSize >= 1);
  static_assert(kTensorCores || kRowBlocks == 1);
  static_assert(!kCanonical || kKeyWarps == 1, "canonical bits: warps split rows only");
};

}  // namespace plait::device::mma
