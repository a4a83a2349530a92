// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What happens to a logit between the first matrix product and the softmax. A kernel without hooks
// keeps raw products and folds the scale into the exponent; with one, logits leave the hook in base
// 2 and the exponent takes them as they are.
#pragma once

#include "cuda/kernels/hopper/merge.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

template <class C>
struct LogitsHook {
  static constexpr bool kActive = C::kSoftCap;

  float exponent_scale;  // from what the hook returns to base 2

  PLAIT_DEVICE void start_head(const Params& p, i32 kv_head) {
    exponent_scale = kActive ? 1.0F : p.sm_scale * k_scale(p, kv_head) * kLog2E;
  }

  /// What a tile's logits need, made anew for every tile: registers are scarce between them.
  struct Tile {
    float cap_log2;  // soft cap in base 2
    float cap_rate;  // 2^(raw * cap_rate) = e^(2 * sm_scale * raw / cap)

    PLAIT_DEVICE float apply(float raw) const {
      if constexpr (C::kSoftCap) {
        // c tanh(x / c) = c - 2 c / (1 + e^(2 x / c)): right at both ends, and accurate to the last
        // bits of c, which tanh.approx is not.
        return cap_log2 - 2.0F * cap_log2 * fast_reciprocal(1.0F + fast_exp2(raw * cap_rate));
      } else {
        return raw;
      }
    }
  };
  PLAIT_DEVICE Tile start_tile(const Params& p, i32 kv_head) const {
    Tile tile{1.0F, 1.0F};
    if constexpr (C::kSoftCap) {
      float cap = p.soft_cap;
      asm volatile("" : "+f"(cap));  // not a constant of the loop, or it would live through it
      tile.cap_log2 = cap * kLog2E;
      tile.cap_rate = 2.0F * kLog2E * p.sm_scale * k_scale(p, kv_head) / cap;
    }
    return tile;
  }
};

#endif

}  // namespace plait::device::hopper
