// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Decode: a few query rows against keys that all of them see. K and V are read once, straight
// from the cache; while one block of K is scored, the block's V is fetched, and while its V is
// folded in, the next block's K. Pages are scattered and short, so the hardware prefetcher does not
// help.
#if defined(PLAIT_CPU_STREAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PLAIT_CPU_STREAM_INL_H_
#undef PLAIT_CPU_STREAM_INL_H_
#else
#define PLAIT_CPU_STREAM_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "cpu/kernel_table.h"
#include "cpu/load-inl.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace plait::cpu::HWY_NAMESPACE {

HWY_INLINE void prefetch_row(const void* row, std::size_t bytes) {
  const char* p = static_cast<const char*>(row);
  for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 3);
}

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

/// Scores four keys for R rows: s[r][0..3] = scale * (q_r . k).
template <class Load, int R>
HWY_INLINE void score_keys(const float* q, std::ptrdiff_t q_ld, const void* const* k_rows,
                           std::ptrdiff_t offset, int dim, float scale, float* s) {
  const auto* k0 = row_of<Load>(k_rows[0], offset);
  const auto* k1 = row_of<Load>(k_rows[1], offset);
  const auto* k2 = row_of<Load>(k_rows[2], offset);
  const auto* k3 = row_of<Load>(k_rows[3], offset);
  const DF df;
  VF acc[R][4];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int key = 0; key < 4; ++key) acc[r][key] = hn::Zero(df);
  }
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
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
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const auto sums = sums_of_lanes(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
    hn::StoreU(hn::Mul(sums, hn::Set(d4, scale)), d4, s + r * kStreamBlock);
  }
}

/// o[r][0 .. NV*lanes) = o * alpha[r] + sum over keys of s[r][key] * v[key].
template <class Load, int R, int NV>
HWY_INLINE void fold_values(const StreamStep& t, int row, const float* alpha, int column,
                            const void* const* v_rows, std::ptrdiff_t offset, int first,
                            int num_keys) {
  const DF df;
  float* o = t.o + row * t.o_ld + column;
  const float* s = t.s + row * kStreamBlock;
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
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const VF p = hn::Set(df, s[r * kStreamBlock + key]);
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
      acc = hn::MulAdd(hn::Set(df, t.s[(row + r) * kStreamBlock + key]),
                       load_tail<Load>(v, t.dim_vo - column), acc);
    }
    hn::StoreU(acc, df, o);
  }
}

/// Softmax of one row over a block; s is padded with -inf to kStreamBlock. Returns alpha.
HWY_INLINE float softmax_block(float* s, float& m, float& l) {
  const DF df;
  VF max = hn::Set(df, m);
  for (int i = 0; i < kStreamBlock; i += kLanes) max = hn::Max(max, hn::LoadU(df, s + i));
  max = hn::MaxOfLanes(df, max);
  const VF base =
      hn::IfThenZeroElse(hn::Eq(max, hn::Set(df, -std::numeric_limits<float>::infinity())), max);
  VF sum = hn::Zero(df);
  for (int i = 0; i < kStreamBlock; i += kLanes) {
    const VF p = exp2_nonpositive(hn::Sub(hn::LoadU(df, s + i), base));
    sum = hn::Add(sum, p);
    hn::StoreU(p, df, s + i);
  }
  const float alpha = hn::GetLane(exp2_nonpositive(hn::Sub(hn::Set(df, m), base)));
  l = l * alpha + hn::GetLane(hn::SumOfLanes(df, sum));
  m = hn::GetLane(max);
  return alpha;
}

/// Scores `count` keys from `first` of the block on, up to four, for the rows of one head.
template <class Load>
HWY_INLINE void score_head(const StreamStep& t, int head, const void* const* k_rows, int first,
                           int count) {
  const void* rows[4];
  for (int i = 0; i < 4; ++i) rows[i] = k_rows[first + std::min(i, count - 1)];
  const std::ptrdiff_t offset = head * t.k_head_stride;
  const float scale = t.scale[head];
  const int begin = head * t.num_rows;
  const int end = begin + t.num_rows;
  int row = begin;
  const auto q = [&](int r) { return t.q + r * t.q_ld; };
  const auto s = [&](int r) { return t.s + r * kStreamBlock + first; };
  for (; row + 4 <= end; row += 4) {
    score_keys<Load, 4>(q(row), t.q_ld, rows, offset, t.dim_qk, scale, s(row));
  }
  for (; row + 2 <= end; row += 2) {
    score_keys<Load, 2>(q(row), t.q_ld, rows, offset, t.dim_qk, scale, s(row));
  }
  if (row < end) score_keys<Load, 1>(q(row), t.q_ld, rows, offset, t.dim_qk, scale, s(row));
}

template <class Load, int R>
HWY_NOINLINE void fold_rows(const StreamStep& t, int row, const float* alpha,
                            const void* const* v_rows, std::ptrdiff_t offset, int first,
                            int count) {
  int column = 0;
  for (; column + 4 * kLanes <= t.dim_vo; column += 4 * kLanes) {
    fold_values<Load, R, 4>(t, row, alpha, column, v_rows, offset, first, count);
  }
  for (; column + kLanes <= t.dim_vo; column += kLanes) {
    fold_values<Load, R, 1>(t, row, alpha, column, v_rows, offset, first, count);
  }
  if (column < t.dim_vo) fold_tail<Load, R>(t, row, alpha, column, v_rows, offset, first, count);
}

/// Weights of a block's logits in place, for the rows of one head; alpha [num_rows].
HWY_INLINE void softmax_head(const StreamStep& t, int head, int count, float* alpha) {
  for (int r = 0; r < t.num_rows; ++r) {
    const int row = head * t.num_rows + r;
    float* s = t.s + row * kStreamBlock;
    std::fill(s + count, s + kStreamBlock, -std::numeric_limits<float>::infinity());
    alpha[r] = softmax_block(s, t.m[row], t.l[row]);
  }
}

/// Folds values of keys [first, first + count) of a block into the rows of one head.
template <class Load>
void fold_head(const StreamStep& t, int head, const float* alpha, const void* const* v_rows,
               int first, int count) {
  const std::ptrdiff_t offset = head * t.v_head_stride;
  int r = 0;
  const int base = head * t.num_rows;
  for (; r + 4 <= t.num_rows; r += 4)
    fold_rows<Load, 4>(t, base + r, alpha + r, v_rows, offset, first, count);
  for (; r + 2 <= t.num_rows; r += 2)
    fold_rows<Load, 2>(t, base + r, alpha + r, v_rows, offset, first, count);
  if (r < t.num_rows) fold_rows<Load, 1>(t, base + r, alpha + r, v_rows, offset, first, count);
}

/// The rows of one cache that a phase visits: units of `group` keys of one head, in the order in
/// which they lie in memory.
struct Walk {
  const void* const* rows;
  std::ptrdiff_t head_stride;
  std::size_t bytes;
  int num_heads;
  int count;  // keys
  int group;
  bool heads_inner;
};

/// Prefetches a walk's rows in the order of memory, some at a time.
struct Prefetcher {
  Walk w;
  int key = 0;
  int head = 0;

  HWY_INLINE void advance(int n) {
    for (; n > 0; --n) {
      if (key >= w.count || head >= w.num_heads) return;
      prefetch_row(static_cast<const char*>(w.rows[key]) + head * w.head_stride, w.bytes);
      if (w.heads_inner) {
        if (++head == w.num_heads) head = 0, ++key;
      } else {
        if (++key == w.count) key = 0, ++head;
      }
    }
  }
};

/// Calls unit(head, first, count) for every unit of `walk`, fetching a group ahead, and the first
/// group of `then` at the end.
template <class Unit>
HWY_INLINE void visit(const Walk& walk, const Walk& then, const Unit& unit) {
  const int first_units = walk.heads_inner ? walk.num_heads : 1;
  const int groups = (walk.count + walk.group - 1) / walk.group;
  const int units = groups * walk.num_heads;
  Prefetcher here{walk};
  // The first group was fetched by the walk before.
  here.key = walk.group;
  if (!walk.heads_inner && here.key >= walk.count) {
    here.key = 0;
    here.head = 1;
  }
  Prefetcher next{then};
  for (int u = 0; u < units; ++u) {
    const int g = walk.heads_inner ? u / walk.num_heads : u % groups;
    const int head = walk.heads_inner ? u % walk.num_heads : u / groups;
    if (u + first_units < units)
      here.advance(walk.group);
    else
      next.advance(walk.group);
    const int first = g * walk.group;
    unit(head, first, std::min(walk.group, walk.count - first));
  }
}

template <class Load>
void stream_step(const StreamStep& t) {
  constexpr std::size_t kSize = sizeof(typename Load::Element);
  const std::size_t k_bytes = static_cast<std::size_t>(t.dim_qk) * kSize;
  const std::size_t v_bytes = static_cast<std::size_t>(t.dim_vo) * kSize;
  const int listed = t.num_keys + t.num_ahead;
  float alpha[kStreamRows];
  // A unit of a head's own tokens is one page or so; one of a token's heads is as wide as they are.
  const auto group_of = [&t](std::size_t bytes) { return t.heads_inner || bytes > 256 ? 8 : 16; };
  for (int begin = 0; begin < t.num_keys; begin += kStreamBlock) {
    const int count = std::min(kStreamBlock, t.num_keys - begin);
    const Walk k{t.k_rows + begin,  t.k_head_stride, k_bytes, t.num_heads, count,
                 group_of(k_bytes), t.heads_inner};
    const Walk v{t.v_rows + begin,  t.v_head_stride, v_bytes, t.num_heads, count,
                 group_of(v_bytes), t.heads_inner};
    const int ahead = std::min(kStreamBlock, listed - begin - count);
    const Walk next{t.k_rows + begin + count, t.k_head_stride, k_bytes, t.num_heads, ahead,
                    group_of(k_bytes),        t.heads_inner};
    visit(k, v, [&](int head, int first, int n) HWY_ATTR {
      for (int i = 0; i < n; i += 4)
        score_head<Load>(t, head, t.k_rows + begin, first + i, std::min(4, n - i));
    });
    for (int h = 0; h < t.num_heads; ++h) softmax_head(t, h, count, alpha + h * t.num_rows);
    visit(v, next, [&](int head, int first, int n) HWY_ATTR {
      fold_head<Load>(t, head, alpha + head * t.num_rows, t.v_rows + begin, first, n);
    });
  }
}

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
