// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What happens to a logit between the first matrix product and the softmax. A kernel without hooks
// keeps raw products and folds the scale into the exponent; with one, logits leave the hook in base
// 2 and the exponent takes them as they are.
#pragma once

#include "cuda/kernels/hopper/merge.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// Per thread: two rows, as everywhere in these kernels.
template <class C>
struct LogitsHook {
  static constexpr bool kActive = C::kSoftCap || C::kAlibi;

  float exponent_scale;  // from what the hook returns to base 2
  float scale_log2;      // from raw products to base 2
  float cap_log2;        // soft cap in base 2
  float cap_rate;        // 2^(raw * cap_rate) = e^(2 * sm_scale * raw / cap)
  float slope_log2[2];
  i32 position[2];  // of the rows, in slots
  float bias[2];    // ALiBi at this thread's first slot of the tile

  PLAIT_DEVICE void start_head(const Params& p, i32 kv_head) {
    const float scale = p.sm_scale * k_scale(p, kv_head);
    scale_log2 = scale * kLog2E;
    exponent_scale = kActive ? 1.0F : scale_log2;
    if constexpr (C::kSoftCap) {
      cap_log2 = p.soft_cap * kLog2E;
      cap_rate = 2.0F * scale_log2 / p.soft_cap;
    }
  }
  PLAIT_DEVICE void start_row(const Params& p, const Work& w, i32 which, RowHead at) {
    if constexpr (C::kAlibi) {
      slope_log2[which] = __ldg(p.alibi_slopes + at.head) * kLog2E;
      position[which] = row_position(w, at.row);
    }
  }
  PLAIT_DEVICE void start_tile(i32 first_slot) {
    if constexpr (C::kAlibi) {
#pragma unroll
      for (i32 r = 0; r < 2; ++r) {
        // Unknown to the compiler from tile to tile: it would keep slope * column for every column.
        asm volatile("" : "+f"(slope_log2[r]));
        bias[r] = slope_log2[r] * static_cast<float>(first_slot - position[r]);
      }
    }
  }

  /// Row `which` of this thread, `column` slots after the first of the tile.
  PLAIT_DEVICE float apply(float raw, i32 which, i32 column) const {
    float s = raw;
    if constexpr (kActive) s = raw * scale_log2;
    if constexpr (C::kSoftCap) {
      // c tanh(x / c) = c - 2 c / (1 + e^(2 x / c)): right at both ends, and accurate to the last
      // bits of c, which tanh.approx is not.
      s = cap_log2 - 2.0F * cap_log2 * reciprocal_approx(1.0F + exp2_approx(raw * cap_rate));
    }
    if constexpr (C::kAlibi) s += bias[which] + slope_log2[which] * static_cast<float>(column);
    return s;
  }
};

#endif

}  // namespace plait::device::hopper
