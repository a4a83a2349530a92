// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What happens to a logit between the first matrix product and the softmax: soft cap, then ALiBi.
// A logit stays in whatever unit is cheapest; the exponent's factor turns it into base 2.
#pragma once

#include "cuda/kernels/device/alibi.h"
#include "cuda/kernels/device/soft_cap.h"
#include "cuda/kernels/hopper/merge.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// The exponent in base 2 of a logit, less `base`.
struct ScaledExponent {
  float scale;
  PLAIT_DEVICE float operator()(float s) const { return s * scale; }
  PLAIT_DEVICE float operator()(float s, float base) const { return __fmaf_rn(s, scale, -base); }
};

template <class C>
struct LogitsHook {
  float exponent_scale;  // from a logit after the cap (or a raw product, without one) to base 2
  CappedExponent<3> three_terms;
  CappedExponent<5> five_terms;

  PLAIT_DEVICE void start_head(const Params& p, i32 kv_head) {
    const float scale = p.sm_scale * k_scale(p, kv_head);
    exponent_scale = (C::kSoftCap ? p.soft_cap : scale) * kLog2E;
    if constexpr (C::kSoftCap) {
      three_terms.start(scale, p.soft_cap);
      five_terms.start(scale, p.soft_cap);
    }
  }

  /// The largest magnitude among the thread's raw products, of which hidden ones are zeros; `top`:
  /// the largest of them. NaN may not hide a magnitude: it is passed over, or is the result.
  template <i32 kCount>
  static PLAIT_DEVICE float farthest(const float (&s)[kCount], float top) {
    // As integers, negative numbers are larger than others, and the larger the lower they are.
    u32 lowest[2] = {0, 0};
#pragma unroll
    for (i32 i = 0; i < kCount; ++i) lowest[i & 1] = max_of(lowest[i & 1], __float_as_uint(s[i]));
    // Magnitudes compare as integers do, NaN above all.
    const u32 low = max_of(lowest[0], lowest[1]) & 0x7FFFFFFFU;
    return __uint_as_float(max_of(low, __float_as_uint(top) & 0x7FFFFFFFU));
  }

  /// From a raw product to the argument of scaled_tanh, whose value `exponent_scale` multiplies by
  /// the cap.
  PLAIT_DEVICE float tanh_rate(const Params& p, i32 kv_head) const {
    float cap = p.soft_cap;
    asm volatile("" : "+f"(cap));  // not a constant of the loop, or it would live through it
    return kTanhScale * p.sm_scale * k_scale(p, kv_head) * fast_reciprocal(cap);
  }
};

/// ALiBi for a thread's two rows: device/alibi.h.
template <class C>
struct RowBias {
  /// Rows 8 apart are of one head where groups divide 8.
  static constexpr i32 kSlopes = C::kGroupSize > 0 && 8 % C::kGroupSize == 0 ? 1 : 2;
  float slopes[kSlopes];  // base 2
  i32 position[2];        // of the row, less the thread's first column in a tile

  PLAIT_DEVICE float slope(i32 r) const { return slopes[r % kSlopes]; }

  /// Row r of the thread is fused row `row` of the item, or may lie outside of it.
  PLAIT_DEVICE void start_row(const Params& p, const Work& w, i32 r, i32 row, i32 kv_head) {
    const i32 group = group_size<C>(p);  // a power of two
    const i32 head = kv_head * group + ((w.fused_row_begin + row) & (group - 1));
    if (r < kSlopes) slopes[r] = alibi_slope(__ldg(p.alibi_slopes + head));
    const i32 inside = w.fused_row_begin + max_of(min_of(row, w.num_fused_rows - 1), 0);
    position[r] = row_position(w, inside / group) - (static_cast<i32>(threadIdx.x) & 3) * 2;
  }

  /// Adds the bias of kTokens slots from `first_slot` on: s[4 i + 2 r + e] is the logit of row r
  /// and slot 8 i + e of the thread. Base 2 is s * scale + shift, before and afterwards.
  template <i32 kTokens>
  PLAIT_DEVICE void add(float (&s)[kTokens / 2], float& scale, float (&shift)[2], const Params& p,
                        const Work& w, i32 first_slot) const {
    constexpr i32 kMiddle = kTokens / 2;
    bool small = w.positions == nullptr && may_divide_slopes(scale);
    bool far = true;
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      const i32 middle = first_slot + kMiddle - position[r];
      const i32 distance = max_of(middle, -middle);
      small = small && are_small_biases(slope(r), distance);
      far = far && distance >= kTokens;
    }
    float inverse = fast_reciprocal(scale);
    if (__any_sync(~0U, !(small && far))) {
      if (__any_sync(~0U, !small)) {
#pragma unroll
        for (float& x : s) x = __fmul_rn(x, scale);
        scale = inverse = 1.0F;
      }
      add_exactly<kTokens>(s, p, w, first_slot, inverse);
      return;
    }
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      shift[r] = __fmul_rn(slope(r), static_cast<float>(first_slot + kMiddle - position[r]));
      const float step = __fmul_rn(slope(r), inverse);
#pragma unroll
      for (i32 i = 0; i < kTokens / 4; ++i) {
        float& x = s[i / 2 * 4 + r * 2 + i % 2];
        x = __fmaf_rn(step, static_cast<float>(i / 2 * 8 + i % 2 - kMiddle), x);
      }
    }
  }

  /// Adds the bias, times `inverse`, by distances alone.
  template <i32 kTokens>
  PLAIT_DEVICE void add_exactly(float (&s)[kTokens / 2], const Params& p, const Work& w,
                                i32 first_slot, float inverse) const {
    if (w.positions == nullptr) {
#pragma unroll
      for (i32 r = 0; r < 2; ++r) {
        const float step = __fmul_rn(slope(r), inverse);
        const auto first = static_cast<float>(first_slot - position[r]);
#pragma unroll
        for (i32 i = 0; i < kTokens / 4; ++i) {
          float& x = s[i / 2 * 4 + r * 2 + i % 2];
          x = __fmaf_rn(step, first + static_cast<float>(i / 2 * 8 + i % 2), x);
        }
      }
      return;
    }
    // Every lane looks up a few keys for all.
    constexpr i32 kKeys = min_of(kTokens, 32);
    const i32 lane = static_cast<i32>(threadIdx.x) & 31;
    const i32 own = (lane & 3) * 2;
    i32 keys[kTokens / kKeys];
#pragma unroll
    for (i32 n = 0; n < kTokens / kKeys; ++n) {
      keys[n] = key_position(p, w, first_slot + n * kKeys + (lane & (kKeys - 1)));
    }
#pragma unroll
    for (i32 i = 0; i < kTokens / 4; ++i) {
      const i32 column = i / 2 * 8 + i % 2;
      const i32 key = __shfl_sync(~0U, keys[column / kKeys], column % kKeys + own) - own;
#pragma unroll
      for (i32 r = 0; r < 2; ++r) {
        float& x = s[i / 2 * 4 + r * 2 + i % 2];
        x = __fmaf_rn(slope(r), static_cast<float>(key - position[r]), x);
      }
    }
  }

 private:
  /// Position of slot `slot` of a list with positions; of one outside of the item, which no row
  /// sees, anything.
  static PLAIT_DEVICE i32 key_position(const Params& p, const Work& w, i32 slot) {
    if (slot < w.kv_begin || slot >= w.kv_end) return 0;
    const auto page = static_cast<u32>(page_size<C>(p));
    const u32 entry = static_cast<u32>(slot) / page;
    return __ldg(w.positions + entry) + slot - static_cast<i32>(entry * page);
  }
};

#endif

}  // namespace plait::device::hopper
