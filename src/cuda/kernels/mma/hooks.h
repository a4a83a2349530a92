// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The variant as this family calls it. A user variant's text is included before the entry source
// and names itself and its parameters (cuda/variant_source.h):
//   plait_user::Variant                     the hooks
//   plait_user::Params, plait_user::load()  its parameters, read from AttentionParams
#pragma once

#include "cuda/kernels/common/params.h"
#include "cuda/kernels/device/soft_cap.h"
#include "cuda/kernels/mma/config.h"

namespace plait::device::mma {

/// Which pair an element of a rotated vector belongs to, and its partner.
struct RopePair {
  i32 index, other;
  bool second;
};

__device__ __forceinline__ RopePair rope_pair(i32 dim, i32 rotary_dim) {
  if constexpr (Config::kRopeInterleaved) {
    return {dim / 2, dim ^ 1, (dim & 1) != 0};
  } else {
    const i32 half = rotary_dim / 2;
    return dim < half ? RopePair{dim, dim + half, false} : RopePair{dim - half, dim - half, true};
  }
}

/// Hooks of a kernel without a user variant: none.
template <bool kUser>
struct HookSet {
  static constexpr bool kHasQuery = false;
  static constexpr bool kHasKey = false;
  static constexpr bool kHasLogits = false;
  static constexpr bool kHasMask = false;
  static constexpr bool kHasOutput = false;
  static __device__ __forceinline__ float query(float x, const VectorSite&,
                                                const AttentionParams&) {
    return x;
  }
  static __device__ __forceinline__ float key(float x, const VectorSite&, const AttentionParams&) {
    return x;
  }
  static __device__ __forceinline__ float logits(float s, const LogitSite<float>&,
                                                 const AttentionParams&) {
    return s;
  }
  static __device__ __forceinline__ bool visible(const LogitSite<float>&, const AttentionParams&) {
    return true;
  }
  static __device__ __forceinline__ float weight(float s, const LogitSite<float>&,
                                                 const AttentionParams& p) {
    return fast_sigmoid(s + p.sigmoid_bias);
  }
  static __device__ __forceinline__ float output(float x, const VectorSite&,
                                                 const AttentionParams&) {
    return x;
  }
};

#ifdef PLAIT_USER_VARIANT
template <>
struct HookSet<true> {
  using V = ::plait_user::Variant;
  static_assert(V::kReduction != ReductionKind::kSum || Config::kSumReduction,
                PLAIT_VARIANT_DECLARES_SUM);
  static_assert(V::kReduction == ReductionKind::kSum || !Config::kSumReduction,
                PLAIT_VARIANT_DECLARES_SOFTMAX);
  static constexpr bool kHasQuery = V::kHasQuery;
  static constexpr bool kHasKey = V::kHasKey;
  static constexpr bool kHasLogits = V::kHasLogits;
  static constexpr bool kHasMask = V::kHasMask;
  static constexpr bool kHasOutput = V::kHasOutput;
  static __device__ __forceinline__ float query(float x, const VectorSite& at,
                                                const AttentionParams& p) {
    return V::template query<float>(x, at, ::plait_user::load(p.variant_params));
  }
  static __device__ __forceinline__ float key(float x, const VectorSite& at,
                                              const AttentionParams& p) {
    return V::template key<float>(x, at, ::plait_user::load(p.variant_params));
  }
  static __device__ __forceinline__ float logits(float s, const LogitSite<float>& at,
                                                 const AttentionParams& p) {
    return V::template logits<float>(s, at, ::plait_user::load(p.variant_params));
  }
  static __device__ __forceinline__ bool visible(const LogitSite<float>& at,
                                                 const AttentionParams& p) {
    return V::template visible<float>(at, ::plait_user::load(p.variant_params));
  }
  static __device__ __forceinline__ float weight(float s, const LogitSite<float>& at,
                                                 const AttentionParams& p) {
    return V::template weight<float>(s, at, ::plait_user::load(p.variant_params));
  }
  static __device__ __forceinline__ float output(float x, const VectorSite& at,
                                                 const AttentionParams& p) {
    return V::template output<float>(x, at, ::plait_user::load(p.variant_params));
  }
};
#endif

using Hooks = HookSet<Config::kUser>;

/// Logits are finished one by one, by a hook or into weights.
inline constexpr bool kHookedLogits = Config::kSumReduction || Hooks::kHasLogits;

}  // namespace plait::device::mma
