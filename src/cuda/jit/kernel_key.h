// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a kernel is specialised for. The field list below is the only place that names the fields:
// the struct, its text form (sets, budget tables, messages) and the `KernelConfig` that device code
// reads are generated from it.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "plait/dtype.h"

namespace plait::cuda {

enum class KernelFamily : std::uint8_t { kCommon = 0, kMma = 1, kHopper = 2 };

/// What the kernel computes. The source of (family, op) is `cuda/kernels/<family>/<op>.cu`, with
/// the names that to_string gives.
enum class KernelOp : std::uint8_t {
  kAttention = 0,      // both tile classes from one source; the tiles tell them apart
  kPrefill = 1,        // many fused rows
  kDecode = 2,         // few fused rows
  kMergePartials = 3,  // a plan's reduction map
  kMergeStates = 4,    // free operation: many states per row
  kFinalizeState = 5,
  kAppendPagedKv = 6,
  kApplyRope = 7,
  kReadProbe = 8,    // plain read bandwidth, the bound of decode
  kSelfTest = 9,     // device vocabulary under test
  kMergeState = 10,  // free operation: two states
};

/// How a kernel finds a key: ragged rows, or pages through a table.
enum class KvAccess : std::uint8_t { kRagged = 0, kPaged = 1 };

/// Masks beyond `j < kv_len` that the kernel must be able to apply; an item's own flags say which
/// of them it needs.
enum MaskFlag : std::uint8_t { kMaskCausal = 1, kMaskWindow = 2, kMaskCustom = 4 };

/// Hooks compiled in. What is not compiled in costs nothing.
enum VariantFlag : std::uint16_t {
  kVariantSoftCap = 1 << 0,
  kVariantAlibi = 1 << 1,
  kVariantSink = 1 << 2,
  kVariantRopeHalf = 1 << 3,         // rotation of half-split pairs, fused
  kVariantRopeInterleaved = 1 << 4,  // rotation of adjacent pairs, fused
  kVariantUser = 1 << 5,             // hooks from source text, see `user_variant`
  kVariantKvScale = 1 << 6,          // dequantisation scales of an fp8 cache
};

/// Properties of the launch that change code.
enum ModeFlag : std::uint16_t {
  kModeState = 1 << 0,      // the caller asked for mergeable states
  kModeMeasured = 1 << 1,   // record start and end per worker (`explain --measured`)
  kModeCanonical = 1 << 2,  // plans of canonical segments
};

/// How partial results combine.
enum class KernelReduction : std::uint8_t { kSoftmax = 0, kSum = 1 };

// X(member, type, default, name in text and, as k<Name>, in KernelConfig). Ordered by descending
// size so that the struct has no padding; append new fields inside `spare` when possible.
#define PLAIT_KERNEL_KEY_FIELDS(X)                            \
  X(user_variant, std::uint64_t, 0, "variant", "UserVariant") \
  X(head_dim_qk, std::uint16_t, 0, "dqk", "HeadDimQk")        \
  X(head_dim_vo, std::uint16_t, 0, "dvo", "HeadDimVo")        \
  X(q_tile, std::uint16_t, 0, "qt", "QTile")                  \
  X(kv_tile, std::uint16_t, 0, "kt", "KvTile")                \
  X(page_size, std::uint16_t, 0, "page", "PageSize")          \
  X(group_size, std::uint16_t, 0, "group", "GroupSize")       \
  X(variant, std::uint16_t, 0, "hooks", "VariantFlags")       \
  X(mode, std::uint16_t, 0, "mode", "ModeFlags")              \
  X(stages, std::uint16_t, 0, "stages", "Stages")             \
  X(warps, std::uint16_t, 0, "warps", "Warps")                \
  X(tune_a, std::uint16_t, 0, "ta", "TuneA")                  \
  X(tune_b, std::uint16_t, 0, "tb", "TuneB")                  \
  X(q_dtype, DType, DType::kBF16, "q", "QDtype")              \
  X(kv_dtype, DType, DType::kBF16, "k", "KvDtype")            \
  X(o_dtype, DType, DType::kBF16, "o", "ODtype")              \
  X(kv_access, KvAccess, KvAccess::kRagged, "kv", "KvAccess") \
  X(mask, std::uint8_t, 0, "mask", "MaskFlags")               \
  X(reduction, KernelReduction, KernelReduction::kSoftmax, "sum", "Reduction")

/// A plain, hashable, serialisable struct; all zero bits beyond the defaults, no padding. Meanings
/// of zero: page_size and group_size are read at run time, tiles, stages, warps and the two
/// family-owned tuning fields are the family's own choice.
struct KernelKey {
  KernelFamily family = KernelFamily::kMma;
  KernelOp op = KernelOp::kAttention;
  std::uint8_t spare[6] = {};
#define PLAIT_FIELD(member, type, initial, text, name) type member = initial;
  PLAIT_KERNEL_KEY_FIELDS(PLAIT_FIELD)
#undef PLAIT_FIELD
  std::uint8_t padding[2] = {};

  friend bool operator==(const KernelKey& a, const KernelKey& b) noexcept {
    return std::memcmp(&a, &b, sizeof(KernelKey)) == 0;
  }
};
static_assert(sizeof(KernelKey) == 48);

std::string_view to_string(KernelFamily family) noexcept;
std::string_view to_string(KernelOp op) noexcept;

/// XXH3 of the bytes; a few nanoseconds.
std::uint64_t hash_of(const KernelKey& key) noexcept;

/// The text form, for example "mma attention q=bf16 k=bf16 o=bf16 dqk=128 dvo=128 qt=64 kt=64
/// kv=paged mask=causal,window": family, op, then every field that differs from its default (the
/// three dtypes always). One line, no tabs.
std::string to_string(const KernelKey& key);

/// Inverse of to_string; an unknown, repeated or malformed field is refused with
/// Error{kInvalidArgument} naming it.
KernelKey parse_kernel_key(std::string_view text);

/// A C identifier that names the kernel in profilers and messages; distinct keys may share it only
/// through different user variants.
std::string symbol_of(const KernelKey& key);

/// Where the entry source of (family, op) lies, relative to src/.
std::string entry_path(const KernelKey& key);

}  // namespace plait::cuda
