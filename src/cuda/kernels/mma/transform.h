// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Between arrival and use: keys and values are widened to the type of the products, keys rotated
// and passed to the key hook. Kernels that need none of this have no such pass.
#pragma once

#include "cuda/kernels/device/rope_angle.h"
#include "cuda/kernels/mma/config.h"
#include "cuda/kernels/mma/hooks.h"

namespace plait::device::mma {

struct Transform {
  using C = Config;
  using In = Element<C::kKvDtype>;
  using Out = Element<C::kCompute>;
  static constexpr bool kKeysChange = C::kRope || Hooks::kHasKey;
  static constexpr bool kNeeded = C::kWiden || kKeysChange;

  /// K and V rows of a stage; in place unless widening.
  static __device__ __forceinline__ char* key_tile(char* shared, i32 stage) {
    return shared +
           (C::kWiden ? C::kShared.wide_k : C::kShared.raw + stage * C::kShared.stage_bytes);
  }
  static __device__ __forceinline__ char* value_tile(char* shared, i32 stage) {
    return shared +
           (C::kWiden ? C::kShared.wide_v
                      : C::kShared.raw + stage * C::kShared.stage_bytes + C::kShared.raw_k_bytes);
  }

  /// Needs a barrier before and after. `scale`: the head's k_scale, applied here only if the
  /// variant has a key hook, which must see the scaled key.
  static __device__ __forceinline__ void run(const AttentionParams& p, char* shared, i32 stage,
                                             i32 first_key, i32 kv_head, i32 request, float scale) {
    char* raw = shared + C::kShared.raw + stage * C::kShared.stage_bytes;
    if constexpr (C::kWiden) {
      widen<C::kHeadDimVo, C::kShared.raw_v_pitch, C::kShared.v_pitch>(raw + C::kShared.raw_k_bytes,
                                                                       shared + C::kShared.wide_v);
      if constexpr (!kKeysChange) {
        widen<C::kHeadDimQk, C::kShared.raw_k_pitch, C::kShared.k_pitch>(
            raw, shared + C::kShared.wide_k);
      }
    }
    if constexpr (kKeysChange) {
      change_keys(p, raw, key_tile(shared, stage), shared, first_key, kv_head, request, scale);
    }
  }

 private:
  template <i32 kDim, i32 kInPitch, i32 kOutPitch>
  static __device__ __forceinline__ void widen(const char* in, char* out) {
    if constexpr (C::kKvFp8 && C::kTensorCores && kDim % 4 == 0) {
      constexpr i32 kPerRow = kDim / 4;
      for (i32 i = static_cast<i32>(threadIdx.x); i < C::kKvTile * kPerRow; i += C::kThreads) {
        const i32 row = i / kPerRow;
        const i32 word = i - row * kPerRow;
        const u32 four = *reinterpret_cast<const u32*>(in + row * kInPitch + word * 4);
        uint2 wide;
        wide.x = Out::narrow_pair(In::widen(static_cast<u8>(four)),
                                  In::widen(static_cast<u8>(four >> 8)));
        wide.y = Out::narrow_pair(In::widen(static_cast<u8>(four >> 16)),
                                  In::widen(static_cast<u8>(four >> 24)));
        *reinterpret_cast<uint2*>(out + row * kOutPitch + word * 8) = wide;
      }
    } else {
      for (i32 i = static_cast<i32>(threadIdx.x); i < C::kKvTile * kDim; i += C::kThreads) {
        const i32 row = i / kDim;
        const i32 dim = i - row * kDim;
        put(out + row * kOutPitch, dim, get(in + row * kInPitch, dim));
      }
    }
  }

  static __device__ __forceinline__ float get(const char* row, i32 dim) {
    return In::widen(reinterpret_cast<const typename In::Word*>(row)[dim]);
  }
  static __device__ __forceinline__ void put(char* row, i32 dim, float x) {
    reinterpret_cast<typename Out::Word*>(row)[dim] = Out::narrow(x);
  }

  /// Pairs first, then the elements beyond the rotated ones; each handled by one thread, so that it
  /// works in place.
  static __device__ void change_keys(const AttentionParams& p, const char* in, char* out,
                                     char* shared, i32 first_key, i32 kv_head, i32 request,
                                     float scale) {
    const i32 pairs = C::kRope ? p.rotary_dim / 2 : 0;
    const i32 units = C::kHeadDimQk - pairs;
    const auto* positions = reinterpret_cast<const i32*>(shared + C::kShared.positions) + first_key;
    const auto* rope_positions =
        reinterpret_cast<const i32*>(shared + C::kShared.rope_positions) + first_key;
    for (i32 i = static_cast<i32>(threadIdx.x); i < C::kKvTile * units; i += C::kThreads) {
      const i32 row = i / units;
      const i32 unit = i - row * units;
      const char* source = in + row * C::kShared.raw_k_pitch;
      char* target = out + row * C::kShared.k_pitch;
      if (unit < pairs) {
        const i32 first = C::kRopeInterleaved ? 2 * unit : unit;
        const i32 second = C::kRopeInterleaved ? first + 1 : unit + pairs;
        const Rotation r = rotation_at(p.rope_turns, unit, C::kRope ? rope_positions[row] : 0);
        const float a = get(source, first);
        const float b = get(source, second);
        put(target, first,
            hooked(p, a * r.cosine - b * r.sine, positions[row], kv_head, request, first, scale));
        put(target, second,
            hooked(p, b * r.cosine + a * r.sine, positions[row], kv_head, request, second, scale));
      } else {
        const i32 dim = unit + pairs;
        put(target, dim, hooked(p, get(source, dim), positions[row], kv_head, request, dim, scale));
      }
    }
  }

  static __device__ __forceinline__ float hooked(const AttentionParams& p, float x, i32 position,
                                                 i32 kv_head, i32 request, i32 dim, float scale) {
    if constexpr (!Hooks::kHasKey) return x;
    return Hooks::key(x * scale, VectorSite{request, position, kv_head, dim}, p);
  }
};

}  // namespace plait::device::mma
