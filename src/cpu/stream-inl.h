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
                           std::ptrdiff_t s_ld, [[maybe_unused]] const char* const* place) {
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
      if (i / kStep % kStepsApart == 0) Fetcher::fetch<kSize>(place);
    }
    accumulate_keys<Keys, R>(acc, q + i, q_ld, Keys::load(k0 + i), Keys::load(k1 + i),
                             Keys::load(k2 + i), Keys::load(k3 + i));
  }
  if (i < dim) {
    const int rest = dim - i;
    if constexpr (kFetch) Fetcher::fetch<kSize>(place);
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

/// o[r][0 .. NV*lanes) = o * alpha[r] + sum over keys of s[r][key] * v[key].
template <class Load, int R, int NV, bool kFetch>
HWY_INLINE void fold_values(const StreamStep& t, int row, const float* alpha, int column,
                            const void* const* v_rows, std::ptrdiff_t offset, int first,
                            int num_keys, [[maybe_unused]] const char* const* place) {
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
  constexpr int kKeysApart = std::max(1, kPiece / (NV * kLanes * kSize));
  for (int key = first; key < first + num_keys; ++key) {
    const auto* v = row_of<Load>(v_rows[key], offset) + column;
    VF x[NV];
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) x[n] = Load::load(v + n * kLanes);
    if constexpr (kFetch) {
      if (key % kKeysApart == 0) Fetcher::fetch<kSize>(place);
    }
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

/// Calls body<R, kFetch>(row) for all rows of a head, R at a time. The first call is to fetch what
/// comes later.
template <class Body>
HWY_INLINE void for_rows(int begin, int count, const Body& body) {
  const int end = begin + count;
  int row = begin;
  const auto next = [&]<int R>() HWY_ATTR {
    if (row == begin) {
      body.template operator()<R, true>(row);
    } else {
      body.template operator()<R, false>(row);
    }
    row += R;
  };
  while (row + 4 <= end) next.template operator()<4>();
  while (row + 2 <= end) next.template operator()<2>();
  if (row < end) next.template operator()<1>();
}

/// Scores keys [first, first + count) of a block for the rows of one head.
template <class Keys>
HWY_INLINE void score_head(const StreamStep& t, const typename Keys::Query* queries,
                           std::ptrdiff_t q_ld, int head, const void* const* k_rows, int first,
                           int count, Fetcher& fetcher) {
  const std::ptrdiff_t offset = head * t.k_head_stride;
  const float scale = t.scale[head];
  const int begin = head * t.num_rows;
  constexpr int kSize = sizeof(typename Keys::Element);
  for (int key = first; key < first + count; key += 4) {
    // Short of four, the last key stands in; its copies are scored into the scratch beyond.
    const typename Keys::Element* k[4];
    for (int i = 0; i < 4; ++i) {
      k[i] = row_of<Keys>(k_rows[std::min(key + i, first + count - 1)], offset);
    }
    float* s = t.s + key * t.s_ld;
    const auto score = [&]<int R, bool kFetch>(int row) HWY_ATTR {
      score_keys<Keys, R, kFetch>(queries + row * q_ld, q_ld, k, t.dim_qk, scale, s + row, t.s_ld,
                                  kFetch ? fetcher.take(4 * t.dim_qk * kSize) : nullptr);
    };
    for_rows(begin, t.num_rows, score);
  }
}

template <class Load, int R, bool kFetch>
HWY_NOINLINE void fold_rows(const StreamStep& t, int row, const float* alpha,
                            const void* const* v_rows, std::ptrdiff_t offset, int first, int count,
                            Fetcher& fetcher) {
  constexpr int kSize = sizeof(typename Load::Element);
  const auto place = [&](int columns) HWY_ATTR {
    return kFetch ? fetcher.take(count * columns * kSize) : nullptr;
  };
  int column = 0;
  for (; column + 4 * kLanes <= t.dim_vo; column += 4 * kLanes) {
    fold_values<Load, R, 4, kFetch>(t, row, alpha, column, v_rows, offset, first, count,
                                    place(4 * kLanes));
  }
  for (; column + kLanes <= t.dim_vo; column += kLanes) {
    fold_values<Load, R, 1, kFetch>(t, row, alpha, column, v_rows, offset, first, count,
                                    place(kLanes));
  }
  if (column < t.dim_vo) fold_tail<Load, R>(t, row, alpha, column, v_rows, offset, first, count);
}

/// Folds values of keys [first, first + count) of a block into the rows of one head.
template <class Load>
void fold_head(const StreamStep& t, int head, const float* alpha, const void* const* v_rows,
               int first, int count, Fetcher& fetcher) {
  const std::ptrdiff_t offset = head * t.v_head_stride;
  const int base = head * t.num_rows;
  for_rows(base, t.num_rows, [&]<int R, bool kFetch>(int row) HWY_ATTR {
    fold_rows<Load, R, kFetch>(t, row, alpha + (row - base), v_rows, offset, first, count, fetcher);
  });
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

/// `queries` are those of the step, as Keys takes them.
template <class Keys, class Load>
void stream(const StreamStep& t, const typename Keys::Query* queries, std::ptrdiff_t q_ld) {
  constexpr int kSize = sizeof(typename Load::Element);
  constexpr int kScoreUnit = 4;
  // The more keys of a head are folded in together, the fewer passes over o; but while they wait
  // for their turn, the rows of all heads have to stay in the first cache.
  const int in_cache = 16384 / (t.num_heads * t.dim_vo * kSize) / 4 * 4;
  const int fold_unit = t.head_run == 1 ? std::clamp(in_cache, 4, 8) : 16;
  Fetcher fetcher(t, kSize);
  HWY_ALIGN float alpha[kStreamRows];
  for (int begin = 0; begin < t.num_keys; begin += kStreamBlock) {
    const int count = std::min(kStreamBlock, t.num_keys - begin);
    const void* const* k_rows = t.k_rows + begin;
    const void* const* v_rows = t.v_rows + begin;
    visit(t, count, kScoreUnit, [&](int head, int first, int n) HWY_ATTR {
      fetcher.fetch_rows(t.k_rows, begin + first, n, head * t.k_head_stride, t.dim_qk * kSize);
      score_head<Keys>(t, queries, q_ld, head, k_rows, first, n, fetcher);
    });
    softmax_block(t, count, alpha);
    visit(t, count, fold_unit, [&](int head, int first, int n) HWY_ATTR {
      fetcher.fetch_rows(t.v_rows, begin + first, n, head * t.v_head_stride, t.dim_vo * kSize);
      fold_head<Load>(t, head, alpha + head * t.num_rows, v_rows, first, n, fetcher);
    });
  }
}

template <class Load>
void stream_step(const StreamStep& t) {
  stream<WidenedKeys<Load>, Load>(t, t.q, t.q_ld);
}

#if HWY_TARGET == HWY_AVX3
/// Narrows a row to the next multiple of PairedKeys::kStep. False if an element is no bf16 number,
/// or a subnormal.
HWY_INLINE bool narrow_query(const float* src, int dim, std::uint16_t* dst) {
  const DU du;
  const hn::Rebind<std::uint16_t, DU> d16;
  const VU exponent = hn::Set(du, 0x7F800000U);
  const VU zero = hn::Zero(du);
  VU inexact = zero;
  for (int i = 0; i < dim; i += kLanes) {
    const VU bits = hn::BitCast(du, hn::LoadU(DF(), src + i));
    const VU low = hn::And(bits, hn::Set(du, 0xFFFFU));
    const auto subnormal =
        hn::And(hn::Eq(hn::And(bits, exponent), zero), hn::Ne(hn::ShiftLeft<1>(bits), zero));
    inexact = hn::Or(hn::Or(inexact, low), hn::VecFromMask(du, subnormal));
    hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(bits)), d16, dst + i);
  }
  for (int i = (dim + kLanes - 1) / kLanes * kLanes; i % PairedKeys::kStep != 0; i += kLanes) {
    hn::StoreU(hn::Zero(d16), d16, dst + i);
  }
  return hn::AllTrue(du, hn::Eq(inexact, zero));
}

/// For processors that multiply bf16: where the queries are bf16 numbers, too.
inline void stream_step_bf16(const StreamStep& t) {
  constexpr int kMost = 16384;
  HWY_ALIGN std::uint16_t queries[kMost];
  const int rows = t.num_heads * t.num_rows;
  const int ld = (t.dim_qk + PairedKeys::kStep - 1) / PairedKeys::kStep * PairedKeys::kStep;
  bool exact = rows * ld <= kMost;
  for (int r = 0; r < rows && exact; ++r) {
    exact = narrow_query(t.q + r * t.q_ld, t.dim_qk, queries + r * ld);
  }
  if (exact) {
    stream<PairedKeys, LoadBF16>(t, queries, ld);
  } else {
    stream_step<LoadBF16>(t);
  }
}
#endif

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
