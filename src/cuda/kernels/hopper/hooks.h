// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What happens to a logit between the first matrix product and the softmax: soft cap, then ALiBi.
// A logit stays in whatever unit is cheapest; the exponent's factor turns it into base 2.
#pragma once

#include "cuda/kernels/hopper/merge.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

template <class C>
struct LogitsHook {
  float exponent_scale;  // from a logit after the cap (or a raw product, without one) to base 2

  PLAIT_DEVICE void start_head(const Params& p, i32 kv_head) {
    exponent_scale = (C::kSoftCap ? p.soft_cap : p.sm_scale * k_scale(p, kv_head)) * kLog2E;
  }

  /// Turns the thread's raw products into tanh, which `exponent_scale` multiplies by the cap.
  template <i32 kCount, class X>
  PLAIT_DEVICE void cap(const Params& p, i32 kv_head, X&& x) const {
    if constexpr (C::kSoftCap) {
      float cap = p.soft_cap;
      asm volatile("" : "+f"(cap));  // not a constant of the loop, or it would live through it
      scaled_tanh_of<kCount>(kTanhScale * p.sm_scale * k_scale(p, kv_head) * fast_reciprocal(cap),
                             x);
    }
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
