// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What happens to a logit between the first matrix product and the softmax: soft cap, then ALiBi.
// A logit stays in whatever unit is cheapest; the exponent's factor turns it into base 2.
#pragma once

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

  /// The largest magnitude among the thread's raw products; `top`: the largest of them. NaN, of
  /// keys that are hidden later, may not hide a magnitude: it is passed over, or is the result.
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

/// ALiBi for a thread's two rows. The bias of a key is slope times an exact distance, or, in tiles
/// far from the rows, slope times a constant column, and the rest of it a shift for each row. A
/// shift cancels most of what the columns add: rounding loses as much as a bias of a tile's width
/// does, which far keys are allowed to lose, and near ones, with a bias of almost nothing, are not.
template <class C>
struct RowBias {
  float slope[2];   // in the unit of the logits
  i32 position[2];  // of the row, less the thread's first column in a tile

  /// Row r of the thread is fused row `fused_row`.
  PLAIT_DEVICE void start_row(const Params& p, const Work& w, i32 r, i32 fused_row, i32 kv_head,
                              float exponent_scale) {
    const RowHead at = row_head<C>(p, fused_row, kv_head);
    // Infinite ones would make NaN of distance 0.
    constexpr float kSteepest = 0x1p110F;
    slope[r] = fminf(fmaxf(__ldg(p.alibi_slopes + at.head) * kLog2E / exponent_scale, -kSteepest),
                     kSteepest);
    position[r] = row_position(w, at.row) - (static_cast<i32>(threadIdx.x) & 3) * 2;
  }

  /// Adds the bias of kTokens slots from `first_slot` on, a multiple of 16 in a list with
  /// positions. s[4 i + 2 r + e] is that of row r and slot 8 i + e of the thread.
  template <i32 kTokens>
  PLAIT_DEVICE void add(float (&s)[kTokens / 2], const Params& p, const Work& w,
                        i32 first_slot) const {
    if (w.positions == nullptr) {
      add_run<kTokens>(s, first_slot);
      return;
    }
#pragma unroll
    for (i32 block = 0; block < kTokens / 16; ++block) {
      const i32 slot = first_slot + block * 16;
      if constexpr (C::kGather) {
        const i32 own = (static_cast<i32>(threadIdx.x) & 3) * 2;
#pragma unroll
        for (i32 i = 0; i < 8; ++i) {
          const i32 column = own + i / 4 * 8 + (i & 1);
          const i32 key = key_position(p, w, max_of(slot + column, w.kv_begin)) - own;
          const i32 r = (i >> 1) & 1;
          s[block * 8 + i] =
              __fmaf_rn(slope[r], static_cast<float>(key - position[r]), s[block * 8 + i]);
        }
      } else {
        add_run<16>(s + block * 8, key_position(p, w, slot));
      }
    }
  }

  /// Whether all of kTokens slots from `first_slot` on are as far from the warp's rows as they
  /// reach.
  template <i32 kTokens>
  PLAIT_DEVICE bool is_far(const Work& w, i32 first_slot) const {
    const auto is_near = [&](i32 r) {
      return static_cast<u32>(first_slot - position[r] + 2 * kTokens) < u32{3 * kTokens};
    };
    return w.positions == nullptr && !__any_sync(~0U, is_near(0) || is_near(1));
  }

  /// `add` for such slots. `shift` gets what each row's logits still lack, in base 2.
  template <i32 kTokens>
  PLAIT_DEVICE void add_far(float (&s)[kTokens / 2], float (&shift)[2], i32 first_slot,
                            float exponent_scale) const {
    constexpr i32 kMiddle = kTokens / 2;  // the smaller a column, the more exact
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      shift[r] = __fmul_rn(__fmul_rn(slope[r], exponent_scale),
                           static_cast<float>(first_slot + kMiddle - position[r]));
    }
#pragma unroll
    for (i32 i = 0; i < kTokens / 2; ++i) {
      const i32 column = i / 4 * 8 + (i & 1) - kMiddle;
      s[i] = __fmaf_rn(slope[(i >> 1) & 1], static_cast<float>(column), s[i]);
    }
  }

 private:
  /// Adds the bias of keys at consecutive positions from `first` on.
  template <i32 kTokens>
  PLAIT_DEVICE void add_run(float* s, i32 first) const {
    const float distance[2] = {static_cast<float>(first - position[0]),
                               static_cast<float>(first - position[1])};
#pragma unroll
    for (i32 i = 0; i < kTokens / 2; ++i) {
      const i32 r = (i >> 1) & 1;
      const i32 column = i / 4 * 8 + (i & 1);
      s[i] = __fmaf_rn(slope[r], distance[r] + static_cast<float>(column), s[i]);
    }
  }

  /// Position of slot `slot` of a list with positions; of one past the item, which no row sees,
  /// anything.
  static PLAIT_DEVICE i32 key_position(const Params& p, const Work& w, i32 slot) {
    if (slot >= w.kv_end) return 0;
    return __ldg(w.positions + slot / page_size<C>(p)) + slot % page_size<C>(p);
  }
};

#endif

}  // namespace plait::device::hopper
