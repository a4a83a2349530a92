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

/// What is added to all logits of a row's keys in a tile, and what rounding took from it. In a wide
/// tile the shift and the columns are large and nearly cancel: the lse would show the rest.
struct RowShift {
  float value[2];
  float rest[2];
};

/// ALiBi for a thread's two rows. Within a run of consecutive positions the bias of a key is that
/// of the run's first plus slope times a constant column: one fused multiply-add, and a shift that
/// the thread's maximum and the base of its exponentials take in.
template <class C>
struct RowBias {
  float slope[2];   // in the unit of the logits
  i32 position[2];  // of the row, less the thread's first column in a tile

  /// Row r of the thread is fused row `fused_row`.
  PLAIT_DEVICE void start_row(const Params& p, const Work& w, i32 r, i32 fused_row, i32 kv_head,
                              float exponent_scale) {
    const RowHead at = row_head<C>(p, fused_row, kv_head);
    slope[r] = __ldg(p.alibi_slopes + at.head) * kLog2E / exponent_scale;
    position[r] = row_position(w, at.row) - (static_cast<i32>(threadIdx.x) & 3) * 2;
  }

  /// Position of slot `slot` of a list with positions; of one past the item, which no row sees,
  /// anything.
  static PLAIT_DEVICE i32 key_position(const Params& p, const Work& w, i32 slot) {
    if (slot >= w.kv_end) return 0;
    return __ldg(w.positions + slot / page_size<C>(p)) + slot % page_size<C>(p);
  }

  /// Adds the bias of kTokens slots from `first_slot` on, a multiple of 16 in a list with
  /// positions. s[4 i + 2 r + e] is that of row r and slot 8 i + e of the thread. Returns, in
  /// base 2, what each row's logits still lack.
  template <i32 kTokens>
  PLAIT_DEVICE RowShift add(float (&s)[kTokens / 2], const Params& p, const Work& w, i32 first_slot,
                            float exponent_scale) const {
    const bool consecutive = w.positions == nullptr;
    RowShift shift{{0.0F, 0.0F}, {0.0F, 0.0F}};
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      if (!consecutive) continue;
      const auto keys = static_cast<float>(first_slot + kTokens / 2 - position[r]);
      const float unit = __fmul_rn(slope[r], exponent_scale);
      const float unit_rest = __fmaf_rn(slope[r], exponent_scale, -unit);
      shift.value[r] = __fmul_rn(unit, keys);
      shift.rest[r] = __fmaf_rn(unit_rest, keys, __fmaf_rn(unit, keys, -shift.value[r]));
    }
    if (consecutive) {
#pragma unroll
      for (i32 i = 0; i < kTokens / 2; ++i) {
        const i32 column = i / 4 * 8 + (i & 1) - kTokens / 2;  // the smaller, the more exact
        s[i] = __fmaf_rn(slope[(i >> 1) & 1], static_cast<float>(column), s[i]);
      }
    } else {
#pragma unroll
      for (i32 block = 0; block < kTokens / 16; ++block) {
        const i32 slot = first_slot + block * 16;
        const i32 own = (static_cast<i32>(threadIdx.x) & 3) * 2;
        const i32 first = C::kGather ? 0 : key_position(p, w, slot);  // of all 16
#pragma unroll
        for (i32 i = 0; i < 8; ++i) {
          const i32 column = i / 4 * 8 + (i & 1);
          const i32 key = C::kGather
                              ? key_position(p, w, max_of(slot + own + column, w.kv_begin)) - own
                              : first + column;
          const i32 r = (i >> 1) & 1;
          s[block * 8 + i] =
              __fmaf_rn(slope[r], static_cast<float>(key - position[r]), s[block * 8 + i]);
        }
      }
    }
    return shift;
  }
};

#endif

}  // namespace plait::device::hopper
