// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The logits of keys that are read straight from the cache.
#if defined(PLAIT_CPU_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PLAIT_CPU_SCORE_INL_H_
#undef PLAIT_CPU_SCORE_INL_H_
#else
#define PLAIT_CPU_SCORE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/fetch-inl.h"
#include "cpu/head_rows-inl.h"
#include "cpu/kernel_table.h"
#include "cpu/load-inl.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace plait::cpu::HWY_NAMESPACE {

/// Adds the 128-bit blocks of a vector.
template <class D>
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> add_blocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    (void)d;
    return v;
  } else {
    const hn::Half<D> half;
    return add_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

/// The four sums of lanes of a, b, c, d.
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> sums_of_lanes(VF a, VF b, VF c, VF d) {
  const DF df;
  const hn::RepartitionToWide<DU> d64;
  const VF ab = hn::Add(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b));
  const VF cd = hn::Add(hn::InterleaveLower(df, c, d), hn::InterleaveUpper(df, c, d));
  const auto wide_ab = hn::BitCast(d64, ab);
  const auto wide_cd = hn::BitCast(d64, cd);
  const VF low = hn::BitCast(df, hn::InterleaveLower(d64, wide_ab, wide_cd));
  const VF high = hn::BitCast(df, hn::InterleaveUpper(d64, wide_ab, wide_cd));
  return add_blocks(df, hn::Add(low, high));
}

/// How logits are computed from keys as Load widens them: a vector of dimensions at a time.
template <class Load>
struct WidenedKeys {
  using Element = typename Load::Element;
  using Query = float;
  using Vector = VF;
  static constexpr int kStep = kLanes;
  static HWY_INLINE VF load(const Element* k) { return Load::load(k); }
  static HWY_INLINE VF load_first(const Element* k, int count) { return load_tail<Load>(k, count); }
  static HWY_INLINE VF query(const Query* q) { return hn::LoadU(DF(), q); }
  static HWY_INLINE VF multiply_add(VF q, VF k, VF acc) { return hn::MulAdd(q, k, acc); }
};

#if HWY_TARGET == HWY_AVX3
/// The same from pairs of bf16, which VDPBF16PS multiplies without widening them. It takes
/// subnormals for 0.
struct PairedKeys {
  using Element = std::uint16_t;
  using Query = std::uint16_t;
  using D = hn::Repartition<std::uint16_t, DF>;
  using Vector = hn::Vec<D>;
  static constexpr int kStep = 2 * kLanes;
  static HWY_INLINE Vector load(const Element* k) { return hn::LoadU(D(), k); }
  static HWY_INLINE Vector load_first(const Element* k, int count) {
    return hn::MaskedLoad(hn::FirstN(D(), static_cast<std::size_t>(count)), D(), k);
  }
  static HWY_INLINE Vector query(const Query* q) { return hn::LoadU(D(), q); }
  static HWY_INLINE VF multiply_add(Vector q, Vector k, VF acc) {
    // Neither Highway's target nor the compiler's has the instruction.
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc.raw) : "v"(q.raw), "v"(k.raw));
    return acc;
  }
};
#endif

/// acc[r][key] += q_r * k over one vector of dimensions.
template <class Keys, int R>
HWY_INLINE void accumulate_keys(VF (&acc)[R][4], const typename Keys::Query* q, std::ptrdiff_t q_ld,
                                typename Keys::Vector x0, typename Keys::Vector x1,
                                typename Keys::Vector x2, typename Keys::Vector x3) {
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const auto qv = Keys::query(q + r * q_ld);
    acc[r][0] = Keys::multiply_add(qv, x0, acc[r][0]);
    acc[r][1] = Keys::multiply_add(qv, x1, acc[r][1]);
    acc[r][2] = Keys::multiply_add(qv, x2, acc[r][2]);
    acc[r][3] = Keys::multiply_add(qv, x3, acc[r][3]);
  }
}

/// Logits of four keys for R rows: s[key * s_ld + r] = scale * (q_r . k).
template <class Keys, int R, bool kFetch>
HWY_INLINE void score_keys(const typename Keys::Query* q, std::ptrdiff_t q_ld,
                           const typename Keys::Element* const* k, int dim, float scale, float* s,
                           std::ptrdiff_t s_ld, [[maybe_unused]] const char* const*& place) {
  constexpr int kStep = Keys::kStep;
  constexpr int kSize = sizeof(typename Keys::Element);
  constexpr int kStepsApart = std::max(1, kPiece / (4 * kStep * kSize));
  const DF df;
  const auto* k0 = k[0];
  const auto* k1 = k[1];
  const auto* k2 = k[2];
  const auto* k3 = k[3];
  VF acc[R][4];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int key = 0; key < 4; ++key) acc[r][key] = hn::Zero(df);
  }
  int i = 0;
  for (; i + kStep <= dim; i += kStep) {
    if constexpr (kFetch) {
      if (i / kStep % kStepsApart == 0) Fetcher::fetch(place);
    }
    accumulate_keys<Keys, R>(acc, q + i, q_ld, Keys::load(k0 + i), Keys::load(k1 + i),
                             Keys::load(k2 + i), Keys::load(k3 + i));
  }
  if (i < dim) {
    const int rest = dim - i;
    if constexpr (kFetch) Fetcher::fetch(place);
    accumulate_keys<Keys, R>(acc, q + i, q_ld, Keys::load_first(k0 + i, rest),
                             Keys::load_first(k1 + i, rest), Keys::load_first(k2 + i, rest),
                             Keys::load_first(k3 + i, rest));
  }
  const hn::FixedTag<float, 4> d4;
  const auto factor = hn::Set(d4, scale);
  if constexpr (R == 4) {
#pragma GCC unroll 4
    for (int key = 0; key < 4; ++key) {
      const auto sums = sums_of_lanes(acc[0][key], acc[1][key], acc[2][key], acc[3][key]);
      hn::StoreU(hn::Mul(sums, factor), d4, s + key * s_ld);
    }
  } else {
    HWY_ALIGN float sums[4];
    for (int r = 0; r < R; ++r) {
      hn::Store(hn::Mul(sums_of_lanes(acc[r][0], acc[r][1], acc[r][2], acc[r][3]), factor), d4,
                sums);
      for (int key = 0; key < 4; ++key) s[key * s_ld + r] = sums[key];
    }
  }
}

/// Scores `count` keys of all heads from key `begin` of the step on, four of a head at a time, in
/// the order of memory. `queries` are those of the step, as Keys takes them.
template <class Keys, int kRows>
HWY_NOINLINE void score_block(const StreamStep& t, const typename Keys::Query* queries,
                              std::ptrdiff_t q_ld, int begin, int count, Fetcher& fetcher) {
  using Element = typename Keys::Element;
  constexpr int kUnit = 4;
  const int dim = t.dim_qk;
  const std::ptrdiff_t row_bytes = dim * static_cast<std::ptrdiff_t>(sizeof(Element));
  const int rows = kRows > 0 ? kRows : t.num_rows;
  const std::ptrdiff_t s_ld = t.s_ld;
  const int run = std::max(t.head_run, kUnit);
  const bool scattered = fetcher.scattered();
  for (int first = 0; first < count; first += run) {
    const int keys = std::min(run, count - first);
    const void* const* k_rows = t.k_rows + begin + first;
    for (int head = 0; head < t.num_heads; ++head) {
      const std::ptrdiff_t offset = head * t.k_head_stride;
      const auto* q = queries + head * rows * q_ld;
      const float scale = t.scale[head];
      float* s = t.s + first * s_ld + head * rows;
      const char* const* place = fetcher.take(keys * row_bytes);
      for (int key = 0; key < keys; key += kUnit, s += kUnit * s_ld) {
        if (scattered) fetcher.fetch_rows(t.k_rows, begin + first + key, kUnit, offset, row_bytes);
        const Element* k[kUnit];
        if (key + kUnit <= keys) {
#pragma GCC unroll 4
          for (int i = 0; i < kUnit; ++i) k[i] = row_of<Keys>(k_rows[key + i], offset);
        } else {
          // The last key stands in; its copies are scored into the scratch beyond.
          for (int i = 0; i < kUnit; ++i) {
            k[i] = row_of<Keys>(k_rows[std::min(key + i, keys - 1)], offset);
          }
        }
        for_row_blocks<kRows>(rows, [&]<int R, bool kFetch>(int row) HWY_ATTR {
          score_keys<Keys, R, kFetch>(q + row * q_ld, q_ld, k, dim, scale, s + row, s_ld, place);
        });
      }
    }
  }
}

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
