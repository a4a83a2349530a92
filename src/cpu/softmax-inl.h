// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What happens to a tile of logits between the two matrix products. Lanes are query rows.
#if defined(PLAIT_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PLAIT_CPU_SOFTMAX_INL_H_
#undef PLAIT_CPU_SOFTMAX_INL_H_
#else
#define PLAIT_CPU_SOFTMAX_INL_H_
#endif

#include <limits>

#include "cpu/builtin_variants-inl.h"
#include "cpu/kernel_table.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace plait::cpu::HWY_NAMESPACE {

HWY_INLINE VF minus_infinity() { return hn::Set(DF(), -std::numeric_limits<float>::infinity()); }

/// Which of the rows at `row` see a key at position `pos`.
HWY_INLINE MF visible_rows(const TileStep& t, int row, std::int32_t pos) {
  const DI di;
  const VI p = hn::Set(di, pos);
  const auto before = hn::Gt(hn::LoadU(di, t.row_lo + row), p);
  const auto after = hn::Gt(p, hn::LoadU(di, t.row_hi + row));
  return hn::RebindMask(DF(), hn::Not(hn::Or(before, after)));
}

template <bool kMasked>
void softmax_rows(const TileStep& t, int row) {
  const DF df;
  const VF scale = hn::Set(df, t.scale);
  float* s = t.s + row;
  const VF old_max = hn::LoadU(df, t.m + row);
  VF max = old_max;
  for (int key = 0; key < t.num_keys; ++key) {
    VF x = hn::Mul(hn::LoadU(df, s + key * t.ld), scale);
    if constexpr (kMasked) {
      x = hn::IfThenElse(visible_rows(t, row, t.key_pos[key]), x, minus_infinity());
    }
    max = hn::Max(max, x);
    hn::StoreU(x, df, s + key * t.ld);
  }
  // A row that saw no key yet subtracts 0, never infinity from infinity.
  const VF base = hn::IfThenZeroElse(hn::Eq(max, minus_infinity()), max);
  const VF alpha = exp2_nonpositive(hn::Sub(old_max, base));
  VF sum = hn::Mul(hn::LoadU(df, t.l + row), alpha);
  for (int key = 0; key < t.num_keys; ++key) {
    const VF p = exp2_nonpositive(hn::Sub(hn::LoadU(df, s + key * t.ld), base));
    sum = hn::Add(sum, p);
    hn::StoreU(p, df, s + key * t.ld);
  }
  hn::StoreU(max, df, t.m + row);
  hn::StoreU(sum, df, t.l + row);
  hn::StoreU(alpha, df, t.alpha + row);
}

inline void softmax_tile(const TileStep& t) {
  for (int row = 0; row < t.num_rows; row += kLanes) {
    if (t.row_lo != nullptr) {
      softmax_rows<true>(t, row);
    } else {
      softmax_rows<false>(t, row);
    }
  }
}

/// Parameters as the built-in variants read them: one vector per row quantity.
struct RowParams {
  float soft_cap;
  float sigmoid_bias;
  F32s slope;
};

/// Applies `hook(s, site, params)` to every logit of the tile.
template <class Hook>
HWY_INLINE void for_each_logit(const TileStep& t, const LogitParams& params, Hook hook) {
  const DF df;
  const DI di;
  for (int row = 0; row < t.num_rows; row += kLanes) {
    const RowParams p{
        params.soft_cap,
        params.sigmoid_bias,
        {params.slopes == nullptr ? hn::Zero(df) : hn::LoadU(df, params.slopes + row)}};
    const VI row_pos =
        params.row_pos == nullptr ? hn::Zero(di) : hn::LoadU(di, params.row_pos + row);
    for (int key = 0; key < t.num_keys; ++key) {
      float* s = t.s + key * t.ld + row;
      device::LogitSite<F32s> site{};
      site.kv_pos = {hn::Set(di, t.key_pos[key])};
      site.distance = {hn::ConvertTo(df, hn::Sub(site.kv_pos.v, row_pos))};
      hn::StoreU(hook(F32s{hn::LoadU(df, s)}, site, p, row, key).v, df, s);
    }
  }
}

inline void scale_tile(const TileStep& t, const LogitParams& params) {
  const float scale = params.scale;
  if (params.soft_cap > 0.0F) {
    for_each_logit(t, params,
                   [scale](F32s s, const auto& site, const RowParams& p, int, int)
                       HWY_ATTR { return SoftCap::logits(s * scale, site, p); });
  } else {
    for_each_logit(t, params, [scale](F32s s, const auto&, const RowParams&, int, int) HWY_ATTR {
      return s * scale;
    });
  }
}

inline void alibi_tile(const TileStep& t, const LogitParams& params) {
  for_each_logit(t, params, [](F32s s, const auto& site, const RowParams& p, int, int) HWY_ATTR {
    return Alibi::logits(s, site, p);
  });
}

inline void sigmoid_tile(const TileStep& t, const LogitParams& params) {
  const bool masked = t.row_lo != nullptr;
  for_each_logit(t, params,
                 [&](F32s s, const auto& site, const RowParams& p, int row, int key) HWY_ATTR {
                   F32s w = Sigmoid::weight(s, site, p);
                   // A masked logit is -inf or lies outside the row's range; its weight is exactly
                   // 0.
                   w.v = hn::IfThenZeroElse(hn::Eq(s.v, minus_infinity()), w.v);
                   if (masked) w.v = hn::IfThenElseZero(visible_rows(t, row, t.key_pos[key]), w.v);
                   return w;
                 });
}

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
