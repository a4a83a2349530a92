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
#include "cpu/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace plait::cpu::HWY_NAMESPACE {

/// Most keys that are computed together.
inline constexpr int kMaxUnit = 8;

HWY_INLINE void prefetch_line(const char* p) { __builtin_prefetch(p, 0, 3); }

/// Rows to fetch while a unit is computed, one per key of the unit, and one more that is there
/// already.
struct Upcoming {
  const char* row[kMaxUnit + 1];
};

/// Fetches upcoming rows a few lines at a time, in the order of memory: the hardware then joins in.
class Fetcher {
 public:
  Fetcher(const char* const* rows, int bytes)
      : rows_(rows), bytes_(bytes), line_(rows[0]), end_(line_ + bytes) {}
  /// The next n lines of the current row, maybe some beyond it.
  HWY_INLINE void lines(int n) {
    for (int i = 0; i < n; ++i) prefetch_line(line_ + 64 * i);
    line_ += 64 * n;
    if (line_ >= end_) {
      line_ = *++rows_;
      end_ = line_ + bytes_;
    }
  }

 private:
  const char* const* rows_;
  int bytes_;
  const char* line_;
  const char* end_;
};

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
                           std::ptrdiff_t s_ld, const char* const* fetch) {
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
  Fetcher fetcher(fetch, dim * kSize);
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    // As many lines as these loads consume, evenly among the arithmetic: a burst would fill the
    // miss buffers and leave memory idle afterwards.
    fetcher.lines(kLanes * kSize / 16);
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
                            int num_keys, Fetcher& fetcher) {
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
    fetcher.lines(NV * kLanes * kSize / 64);
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
                           int count, const Upcoming& upcoming) {
  const std::ptrdiff_t offset = head * t.k_head_stride;
  const float scale = t.scale[head];
  const int begin = head * t.num_rows;
  const int end = begin + t.num_rows;
  for (int key = first; key < first + count; key += 4) {
    // Short of four, the last key stands in; its copies are scored into the scratch beyond.
    const typename Load::Element* k[4];
    for (int i = 0; i < 4; ++i) {
      k[i] = row_of<Load>(k_rows[std::min(key + i, first + count - 1)], offset);
    }
    float* s = t.s + key * t.s_ld;
    const char* const* fetch = upcoming.row + (key - first);
    int row = begin;
    for (; row + 4 <= end; row += 4) {
      score_keys<Load, 4>(t.q + row * t.q_ld, t.q_ld, k, t.dim_qk, scale, s + row, t.s_ld, fetch);
    }
    for (; row + 2 <= end; row += 2) {
      score_keys<Load, 2>(t.q + row * t.q_ld, t.q_ld, k, t.dim_qk, scale, s + row, t.s_ld, fetch);
    }
    if (row < end) {
      score_keys<Load, 1>(t.q + row * t.q_ld, t.q_ld, k, t.dim_qk, scale, s + row, t.s_ld, fetch);
    }
  }
}

template <class Load, int R>
HWY_NOINLINE void fold_rows(const StreamStep& t, int row, const float* alpha,
                            const void* const* v_rows, std::ptrdiff_t offset, int first, int count,
                            const Upcoming& upcoming) {
  Fetcher fetcher(upcoming.row, t.dim_vo * static_cast<int>(sizeof(typename Load::Element)));
  int column = 0;
  for (; column + 4 * kLanes <= t.dim_vo; column += 4 * kLanes) {
    fold_values<Load, R, 4>(t, row, alpha, column, v_rows, offset, first, count, fetcher);
  }
  for (; column + kLanes <= t.dim_vo; column += kLanes) {
    fold_values<Load, R, 1>(t, row, alpha, column, v_rows, offset, first, count, fetcher);
  }
  if (column < t.dim_vo) fold_tail<Load, R>(t, row, alpha, column, v_rows, offset, first, count);
}

/// Folds values of keys [first, first + count) of a block into the rows of one head.
template <class Load>
void fold_head(const StreamStep& t, int head, const float* alpha, const void* const* v_rows,
               int first, int count, const Upcoming& upcoming) {
  const std::ptrdiff_t offset = head * t.v_head_stride;
  int r = 0;
  const int base = head * t.num_rows;
  for (; r + 4 <= t.num_rows; r += 4)
    fold_rows<Load, 4>(t, base + r, alpha + r, v_rows, offset, first, count, upcoming);
  for (; r + 2 <= t.num_rows; r += 2)
    fold_rows<Load, 2>(t, base + r, alpha + r, v_rows, offset, first, count, upcoming);
  if (r < t.num_rows)
    fold_rows<Load, 1>(t, base + r, alpha + r, v_rows, offset, first, count, upcoming);
}

/// The rows of one cache that a phase visits, unit by unit.
struct Walk {
  const void* const* rows;
  std::ptrdiff_t head_stride;
  int num_heads;
  int count;  // keys
  int unit;   // keys of one head that are computed together
  int ahead;  // rows
  bool heads_inner;
};

/// Prefetches the rows of a walk in the order in which they lie in memory.
class Prefetcher {
 public:
  explicit Prefetcher(const Walk& walk) : walk_(walk) {}

  /// The next row to fetch, null at the end.
  HWY_INLINE const char* take() {
    if (done()) return nullptr;
    const char* row = static_cast<const char*>(walk_.rows[key_]) + head_ * walk_.head_stride;
    next();
    return row;
  }
  HWY_INLINE void skip(int n) {
    for (; n > 0 && !done(); --n) next();
  }

 private:
  bool done() const { return key_ >= walk_.count || head_ >= walk_.num_heads; }
  void next() {
    if (walk_.heads_inner) {
      if (++head_ == walk_.num_heads) {
        head_ = 0;
        ++key_;
      }
    } else if (++key_ == walk_.count) {
      key_ = 0;
      ++head_;
    }
  }

  Walk walk_;
  int key_ = 0;
  int head_ = 0;
};

/// Calls unit(head, first, count) for every unit of `walk`, in the order of memory, fetching
/// `ahead` rows in advance, at the end those of `then`.
template <class Unit>
HWY_INLINE void visit(const Walk& walk, const Walk& then, const Unit& unit) {
  const int groups = (walk.count + walk.unit - 1) / walk.unit;
  Prefetcher here(walk);
  here.skip(walk.ahead);  // fetched by the walk before
  Prefetcher following(then);
  int room = then.ahead;
  for (int u = 0; u < groups * walk.num_heads; ++u) {
    const int g = walk.heads_inner ? u / walk.num_heads : u % groups;
    const int head = walk.heads_inner ? u % walk.num_heads : u / groups;
    const int first = g * walk.unit;
    const int count = std::min(walk.unit, walk.count - first);
    Upcoming upcoming;
    const char* idle = static_cast<const char*>(walk.rows[first]);  // in cache already
    for (int i = 0; i < walk.unit; ++i) {
      const char* row = i < count ? here.take() : idle;
      if (row == nullptr && room-- > 0) row = following.take();
      upcoming.row[i] = row == nullptr ? idle : row;
    }
    upcoming.row[walk.unit] = idle;
    unit(head, first, count, upcoming);
  }
}

template <class Load>
void stream_step(const StreamStep& t) {
  constexpr std::size_t kSize = sizeof(typename Load::Element);
  // How far ahead rows are fetched: beyond the latency of memory, but within the first cache
  // together with what is computed. Measured, as are the units: `plait bench decode`.
  constexpr std::size_t kAheadBytes = 16384;
  constexpr int kScoreUnit = 4;
  constexpr int kFoldUnit = kSize > 2 ? 4 : 8;
  const auto walk_of = [&t](const void* const* rows, std::ptrdiff_t head_stride, int dim, int count,
                            int unit) {
    const std::size_t bytes = static_cast<std::size_t>(dim) * kSize;
    const int ahead = static_cast<int>(kAheadBytes / bytes);
    const int least = t.heads_inner ? unit * t.num_heads : unit;
    return Walk{rows, head_stride, t.num_heads, count, unit, std::max(ahead, least), t.heads_inner};
  };
  const int listed = t.num_keys + t.num_ahead;
  HWY_ALIGN float alpha[kStreamRows];
  for (int begin = 0; begin < t.num_keys; begin += kStreamBlock) {
    const int count = std::min(kStreamBlock, t.num_keys - begin);
    const void* const* k_rows = t.k_rows + begin;
    const void* const* v_rows = t.v_rows + begin;
    const int next_count = std::min(kStreamBlock, listed - begin - count);
    const Walk k = walk_of(k_rows, t.k_head_stride, t.dim_qk, count, kScoreUnit);
    const Walk v = walk_of(v_rows, t.v_head_stride, t.dim_vo, count, kFoldUnit);
    const Walk next = walk_of(k_rows + count, t.k_head_stride, t.dim_qk, next_count, kScoreUnit);
    visit(k, v, [&](int head, int first, int n, const Upcoming& upcoming) HWY_ATTR {
      score_head<Load>(t, head, k_rows, first, n, upcoming);
    });
    softmax_block(t, count, alpha);
    visit(v, next, [&](int head, int first, int n, const Upcoming& upcoming) HWY_ATTR {
      fold_head<Load>(t, head, alpha + head * t.num_rows, v_rows, first, n, upcoming);
    });
  }
}

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
