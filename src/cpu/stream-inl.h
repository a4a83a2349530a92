// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Decode: a few query rows against keys that all of them see. K and V are read once, straight
// from the cache, and fetched ahead (fetch-inl.h) while others are computed.
#if defined(PLAIT_CPU_STREAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PLAIT_CPU_STREAM_INL_H_
#undef PLAIT_CPU_STREAM_INL_H_
#else
#define PLAIT_CPU_STREAM_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "cpu/fetch-inl.h"
#include "cpu/kernel_table.h"
#include "cpu/load-inl.h"
#include "cpu/simd-inl.h"
#include "cpu/softmax-inl.h"

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

/// The row of another head.
template <class Load>
HWY_INLINE const typename Load::Element* row_of(const void* row, std::ptrdiff_t offset) {
  return reinterpret_cast<const typename Load::Element*>(static_cast<const char*>(row) + offset);
}

/// acc[r][key] += q_r * k over one vector of dimensions.
template <int R>
HWY_INLINE void accumulate_keys(VF (&acc)[R][4], const float* q, std::ptrdiff_t q_ld, VF x0, VF x1,
                                VF x2, VF x3) {
  const DF df;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const VF qv = hn::LoadU(df, q + r * q_ld);
    acc[r][0] = hn::MulAdd(qv, x0, acc[r][0]);
    acc[r][1] = hn::MulAdd(qv, x1, acc[r][1]);
    acc[r][2] = hn::MulAdd(qv, x2, acc[r][2]);
    acc[r][3] = hn::MulAdd(qv, x3, acc[r][3]);
  }
}

/// Logits of four keys for R rows: s[key * s_ld + r] = scale * (q_r . k).
template <class Load, int R>
HWY_INLINE void score_keys(const float* q, std::ptrdiff_t q_ld,
                           const typename Load::Element* const* k, int dim, float scale, float* s,
                           std::ptrdiff_t s_ld, Fetcher::Paces paces) {
  constexpr int kSize = static_cast<int>(sizeof(typename Load::Element));
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
  for (; i + kLanes <= dim; i += kLanes) {
    Fetcher::round<4 * kLanes * kSize>(paces, i / kLanes);
    accumulate_keys<R>(acc, q + i, q_ld, Load::load(k0 + i), Load::load(k1 + i), Load::load(k2 + i),
                       Load::load(k3 + i));
  }
  if (i < dim) {
    const int rest = dim - i;
    accumulate_keys<R>(acc, q + i, q_ld, load_tail<Load>(k0 + i, rest),
                       load_tail<Load>(k1 + i, rest), load_tail<Load>(k2 + i, rest),
                       load_tail<Load>(k3 + i, rest));
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

/// o[r][0 .. NV*lanes) = o * alpha[r] + sum over keys of s[r][key] * v[key].
template <class Load, int R, int NV>
HWY_INLINE void fold_values(const StreamStep& t, int row, const float* alpha, int column,
                            const void* const* v_rows, std::ptrdiff_t offset, int first,
                            int num_keys, Fetcher::Paces paces) {
  constexpr int kSize = static_cast<int>(sizeof(typename Load::Element));
  const DF df;
  float* o = t.o + row * t.o_ld + column;
  const float* s = t.s + row;
  VF acc[R][NV];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const VF a = hn::Set(df, first == 0 ? alpha[r] : 1.0F);
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) acc[r][n] = hn::Mul(hn::LoadU(df, o + r * t.o_ld + n * kLanes), a);
  }
  for (int key = first; key < first + num_keys; ++key) {
    const auto* v = row_of<Load>(v_rows[key], offset) + column;
    VF x[NV];
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) x[n] = Load::load(v + n * kLanes);
    Fetcher::round<NV * kLanes * kSize>(paces, key);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const VF p = hn::Set(df, s[key * t.s_ld + r]);
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) acc[r][n] = hn::MulAdd(p, x[n], acc[r][n]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) hn::StoreU(acc[r][n], df, o + r * t.o_ld + n * kLanes);
  }
}

/// The columns past the last whole vector.
template <class Load, int R>
void fold_tail(const StreamStep& t, int row, const float* alpha, int column,
               const void* const* v_rows, std::ptrdiff_t offset, int first, int num_keys) {
  const DF df;
  for (int r = 0; r < R; ++r) {
    float* o = t.o + (row + r) * t.o_ld + column;
    VF acc = hn::Mul(hn::LoadU(df, o), hn::Set(df, first == 0 ? alpha[r] : 1.0F));
    for (int key = first; key < first + num_keys; ++key) {
      const auto* v = row_of<Load>(v_rows[key], offset) + column;
      acc = hn::MulAdd(hn::Set(df, t.s[key * t.s_ld + row + r]),
                       load_tail<Load>(v, t.dim_vo - column), acc);
    }
    hn::StoreU(acc, df, o);
  }
}

/// Weights of a block's logits in place; rows lie along the lanes.
HWY_INLINE void softmax_block(const StreamStep& t, int count, float* alpha) {
  TileStep step;
  step.s = t.s;
  step.num_keys = count;
  step.num_rows = static_cast<int>(t.s_ld);
  step.ld = t.s_ld;
  step.m = t.m;
  step.l = t.l;
  step.alpha = alpha;
  softmax_tile(step);
}

/// Scores keys [first, first + count) of a block for the rows of one head.
template <class Load>
HWY_INLINE void score_head(const StreamStep& t, int head, const void* const* k_rows, int first,
                           int count, Fetcher& fetcher) {
  const std::ptrdiff_t offset = head * t.k_head_stride;
  const float scale = t.scale[head];
  const int begin = head * t.num_rows;
  const int end = begin + t.num_rows;
  constexpr int kSize = sizeof(typename Load::Element);
  for (int key = first; key < first + count; key += 4) {
    // Short of four, the last key stands in; its copies are scored into the scratch beyond.
    const typename Load::Element* k[4];
    for (int i = 0; i < 4; ++i) {
      k[i] = row_of<Load>(k_rows[std::min(key + i, first + count - 1)], offset);
    }
    float* s = t.s + key * t.s_ld;
    int pass = 0;
    const auto paces = [&]() HWY_ATTR {
      return fetcher.take<4 * kLanes * kSize>(4 * t.dim_qk * kSize, pass++);
    };
    int row = begin;
    for (; row + 4 <= end; row += 4) {
      score_keys<Load, 4>(t.q + row * t.q_ld, t.q_ld, k, t.dim_qk, scale, s + row, t.s_ld, paces());
    }
    for (; row + 2 <= end; row += 2) {
      score_keys<Load, 2>(t.q + row * t.q_ld, t.q_ld, k, t.dim_qk, scale, s + row, t.s_ld, paces());
    }
    if (row < end) {
      score_keys<Load, 1>(t.q + row * t.q_ld, t.q_ld, k, t.dim_qk, scale, s + row, t.s_ld, paces());
    }
  }
}

template <class Load, int R>
HWY_NOINLINE void fold_rows(const StreamStep& t, int row, const float* alpha,
                            const void* const* v_rows, std::ptrdiff_t offset, int first, int count,
                            Fetcher& fetcher, int pass) {
  constexpr int kSize = sizeof(typename Load::Element);
  int column = 0;
  for (; column + 4 * kLanes <= t.dim_vo; column += 4 * kLanes) {
    constexpr int kRound = 4 * kLanes * kSize;
    fold_values<Load, R, 4>(t, row, alpha, column, v_rows, offset, first, count,
                            fetcher.take<kRound>(count * kRound, pass));
  }
  for (; column + kLanes <= t.dim_vo; column += kLanes) {
    constexpr int kRound = kLanes * kSize;
    fold_values<Load, R, 1>(t, row, alpha, column, v_rows, offset, first, count,
                            fetcher.take<kRound>(count * kRound, pass));
  }
  if (column < t.dim_vo) fold_tail<Load, R>(t, row, alpha, column, v_rows, offset, first, count);
}

/// Folds values of keys [first, first + count) of a block into the rows of one head.
template <class Load>
void fold_head(const StreamStep& t, int head, const float* alpha, const void* const* v_rows,
               int first, int count, Fetcher& fetcher) {
  const std::ptrdiff_t offset = head * t.v_head_stride;
  int r = 0;
  int pass = 0;
  const int base = head * t.num_rows;
  for (; r + 4 <= t.num_rows; r += 4)
    fold_rows<Load, 4>(t, base + r, alpha + r, v_rows, offset, first, count, fetcher, pass++);
  for (; r + 2 <= t.num_rows; r += 2)
    fold_rows<Load, 2>(t, base + r, alpha + r, v_rows, offset, first, count, fetcher, pass++);
  if (r < t.num_rows)
    fold_rows<Load, 1>(t, base + r, alpha + r, v_rows, offset, first, count, fetcher, pass);
}

/// Calls unit(head, first, count) for `keys` keys of every head, `most` at a time, in the order of
/// memory.
template <class Unit>
HWY_INLINE void visit(const StreamStep& t, int keys, int most, const Unit& unit) {
  const int run = std::max(t.head_run, most);
  for (int begin = 0; begin < keys; begin += run) {
    const int end = std::min(begin + run, keys);
    for (int head = 0; head < t.num_heads; ++head) {
      for (int first = begin; first < end; first += most) {
        unit(head, first, std::min(most, end - first));
      }
    }
  }
}

template <class Load>
void stream_step(const StreamStep& t) {
  constexpr int kSize = sizeof(typename Load::Element);
  constexpr int kScoreUnit = 4;
  // The more keys of a head are folded in together, the fewer passes over o; but while they wait
  // for their turn, the rows of all heads have to stay in the first cache.
  const int in_cache = 16384 / (t.num_heads * t.dim_vo * kSize) / 4 * 4;
  const int fold_unit = t.head_run == 1 ? std::clamp(in_cache, 4, 8) : 16;
  // Four rows at a time, two and one.
  const int passes = t.num_rows / 4 + t.num_rows % 4 / 2 + t.num_rows % 2;
  Fetcher fetcher(t, kSize, passes);
  HWY_ALIGN float alpha[kStreamRows];
  for (int begin = 0; begin < t.num_keys; begin += kStreamBlock) {
    const int count = std::min(kStreamBlock, t.num_keys - begin);
    const void* const* k_rows = t.k_rows + begin;
    const void* const* v_rows = t.v_rows + begin;
    visit(t, count, kScoreUnit, [&](int head, int first, int n) HWY_ATTR {
      fetcher.fetch_rows(t.k_rows, begin + first, n, head * t.k_head_stride, t.dim_qk * kSize);
      score_head<Load>(t, head, k_rows, first, n, fetcher);
    });
    softmax_block(t, count, alpha);
    visit(t, count, fold_unit, [&](int head, int first, int n) HWY_ATTR {
      fetcher.fetch_rows(t.v_rows, begin + first, n, head * t.v_head_stride, t.dim_vo * kSize);
      fold_head<Load>(t, head, alpha + head * t.num_rows, v_rows, first, n, fetcher);
    });
  }
}

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
