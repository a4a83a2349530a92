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
  float cap_log2;        // soft cap in base 2
  float cap_rate;        // 2^(raw * cap_rate) = e^(2 * sm_scale * raw / cap)

  PLAIT_DEVICE void start_head(const Params& p, i32 kv_head) {
    const float scale_log2 = p.sm_scale * k_scale(p, kv_head) * kLog2E;
    exponent_scale = kActive ? 1.0F : scale_log2;
    if constexpr (C::kSoftCap) {
      cap_log2 = p.soft_cap * kLog2E;
      cap_rate = 2.0F * scale_log2 / p.soft_cap;
    }
  }

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

#endif

}  // namespace plait::device::hopper
