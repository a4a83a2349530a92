// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Sums of weighted values that are read straight from the cache.
#if defined(PLAIT_CPU_FOLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PLAIT_CPU_FOLD_INL_H_
#undef PLAIT_CPU_FOLD_INL_H_
#else
#define PLAIT_CPU_FOLD_INL_H_
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

/// Whether values come as even and odd elements of two vectors at a time.
template <class Load>
inline constexpr bool kSplit = requires(const typename Load::Element* p, VF x) {
  Load::split(p, x, x);
};

template <class Load, int NV>
HWY_INLINE void load_values(const typename Load::Element* v, VF (&x)[NV]) {
  if constexpr (kSplit<Load> && NV % 2 == 0) {
#pragma GCC unroll 4
    for (int n = 0; n < NV; n += 2) Load::split(v + n * kLanes, x[n], x[n + 1]);
  } else {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) x[n] = Load::load(v + n * kLanes);
  }
}

/// What a pass over some keys' values needs beside its place in o.
struct Fold {
  const float* weights;  // [count][s_ld], of the first row
  std::ptrdiff_t s_ld;
  const float* alpha;  // what the rows are multiplied by first, or null
  const void* const* v_rows;
  int count;
  std::ptrdiff_t offset;  // bytes from the first head's to the columns at hand
  std::ptrdiff_t o_ld;
};

/// o[r][0 .. NV*lanes) = o * alpha[r] + sum over keys of weights[key][r] * v[key].
template <class Load, int R, int NV, bool kFetch>
HWY_INLINE void fold_values(const Fold& f, float* o, [[maybe_unused]] const char* const*& place) {
  constexpr int kSize = static_cast<int>(sizeof(typename Load::Element));
  const DF df;
  const std::ptrdiff_t s_ld = f.s_ld;
  const std::ptrdiff_t o_ld = f.o_ld;
  const std::ptrdiff_t offset = f.offset;
  const float* s = f.weights;
  const void* const* v = f.v_rows;
  const void* const* const end = v + f.count;
  VF acc[R][NV];
  {
    const float* in = o;
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r, in += o_ld) {
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) acc[r][n] = hn::LoadU(df, in + n * kLanes);
    }
  }
  if (f.alpha != nullptr) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const VF a = hn::Set(df, f.alpha[r]);
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) acc[r][n] = hn::Mul(acc[r][n], a);
    }
  }
  const auto fold = [&](const void* key_row, const float* p_row) HWY_ATTR {
    VF x[NV];
    load_values<Load, NV>(row_of<Load>(key_row, offset), x);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const VF p = hn::Set(df, p_row[r]);
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) acc[r][n] = hn::MulAdd(p, x[n], acc[r][n]);
    }
  };
  constexpr int kKeysApart = std::max(1, kPiece / (NV * kLanes * kSize));
  for (; v + kKeysApart <= end; v += kKeysApart, s += kKeysApart * s_ld) {
    if constexpr (kFetch) Fetcher::fetch(place);
#pragma GCC unroll 8
    for (int i = 0; i < kKeysApart; ++i) fold(v[i], s + i * s_ld);
  }
  if constexpr (kKeysApart > 1) {
    if (kFetch && v < end) Fetcher::fetch(place);
    for (; v < end; ++v, s += s_ld) fold(*v, s);
  }
  // Not the addresses of the loads: they would be kept, and spilled, for all that time.
  asm("" : "+r"(o));
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r, o += o_ld) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) hn::StoreU(acc[r][n], df, o + n * kLanes);
  }
}

/// The columns past the last whole vector.
template <class Load, int R>
HWY_NOINLINE void fold_tail(const Fold& f, float* o, int columns) {
  const DF df;
  for (int r = 0; r < R; ++r, o += f.o_ld) {
    VF acc = hn::LoadU(df, o);
    if (f.alpha != nullptr) acc = hn::Mul(acc, hn::Set(df, f.alpha[r]));
    for (int key = 0; key < f.count; ++key) {
      acc = hn::MulAdd(hn::Set(df, f.weights[key * f.s_ld + r]),
                       load_tail<Load>(row_of<Load>(f.v_rows[key], f.offset), columns), acc);
    }
    hn::StoreU(acc, df, o);
  }
}

/// All columns of R rows. kWhole: they are a multiple of four vectors.
template <class Load, int R, bool kFetch, bool kWhole>
HWY_INLINE void fold_rows(Fold f, float* o, int dim, const char* const* place) {
  constexpr int kSize = sizeof(typename Load::Element);
  int column = 0;
  for (; column + 4 * kLanes <= dim; column += 4 * kLanes) {
    fold_values<Load, R, 4, kFetch>(f, o + column, place);
    f.offset += 4 * kLanes * kSize;
  }
  if constexpr (!kWhole) {
    for (; column + kLanes <= dim; column += kLanes) {
      fold_values<Load, R, 1, kFetch>(f, o + column, place);
      f.offset += kLanes * kSize;
    }
    if (column < dim) fold_tail<Load, R>(f, o + column, dim - column);
  }
}

/// Folds `count` values from key `begin` of the step on into the rows of all heads, `unit` keys of
/// a head at a time, in the order of memory. kRows as in for_row_blocks; unless it is 0, columns
/// are a multiple of four vectors.
template <class Load, int kRows>
HWY_NOINLINE void fold_block(const StreamStep& t, int begin, int count, int unit,
                             const float* alpha, Fetcher& fetcher) {
  const int dim = t.dim_vo;
  const std::ptrdiff_t row_bytes =
      dim * static_cast<std::ptrdiff_t>(sizeof(typename Load::Element));
  const int rows = kRows > 0 ? kRows : t.num_rows;
  const int heads = t.num_heads;
  const std::ptrdiff_t s_ld = t.s_ld;
  const std::ptrdiff_t o_ld = t.o_ld;
  const std::ptrdiff_t head_stride = t.v_head_stride;
  const bool scattered = fetcher.scattered();
  for (int first = 0; first < count; first += unit) {
    const void* const* v_rows = t.v_rows + begin + first;
    const int keys = std::min(unit, count - first);
    const float* weights = t.s + first * s_ld;
    const float* head_alpha = first == 0 ? alpha : nullptr;
    float* o = t.o;
    std::ptrdiff_t offset = 0;
    for (int head = 0; head < heads; ++head) {
      if (scattered) fetcher.fetch_rows(t.v_rows, begin + first, keys, offset, row_bytes);
      const char* const* place = fetcher.take(keys * row_bytes);
      for_row_blocks<kRows>(rows, [&]<int R, bool kFetch>(int row) HWY_ATTR {
        const Fold f{weights + row, s_ld, head_alpha == nullptr ? nullptr : head_alpha + row,
                     v_rows,        keys, offset,
                     o_ld};
        fold_rows<Load, R, kFetch, (kRows > 0)>(f, o + row * o_ld, dim, place);
      });
      weights += rows;
      if (head_alpha != nullptr) head_alpha += rows;
      o += rows * o_ld;
      offset += head_stride;
    }
  }
}

/// Brings every 2 * kLanes columns of o that are folded in four vectors at a time into the order
/// of load_values, or back.
template <bool kBack>
void reorder_output(const StreamStep& t) {
  const DF df;
  const int rows = t.num_heads * t.num_rows;
  const int columns = t.dim_vo / (4 * kLanes) * (4 * kLanes);
  for (int r = 0; r < rows; ++r) {
    float* o = t.o + r * t.o_ld;
    for (int i = 0; i < columns; i += 2 * kLanes) {
      const VF a = hn::LoadU(df, o + i);
      const VF b = hn::LoadU(df, o + i + kLanes);
      if constexpr (kBack) {
        hn::StoreInterleaved2(a, b, df, o + i);
      } else {
        hn::StoreU(hn::ConcatEven(df, b, a), df, o + i);
        hn::StoreU(hn::ConcatOdd(df, b, a), df, o + i + kLanes);
      }
    }
  }
}

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
