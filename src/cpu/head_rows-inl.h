// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// How the query rows of a head are divided into blocks whose sums registers hold.
#if defined(PLAIT_CPU_HEAD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PLAIT_CPU_HEAD_ROWS_INL_H_
#undef PLAIT_CPU_HEAD_ROWS_INL_H_
#else
#define PLAIT_CPU_HEAD_ROWS_INL_H_
#endif

#include <cstddef>

#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace plait::cpu::HWY_NAMESPACE {

/// The row of another head.
template <class Load>
HWY_INLINE const typename Load::Element* row_of(const void* row, std::ptrdiff_t offset) {
  return reinterpret_cast<const typename Load::Element*>(static_cast<const char*>(row) + offset);
}

/// Calls body<R, kFetch>(row) for all rows of a head, R at a time. The first call is to fetch what
/// comes later. kRows is their number, or 0 if it is known only at run time.
template <int kRows, class Body>
HWY_INLINE void for_row_blocks([[maybe_unused]] int count, const Body& body) {
  if constexpr (kRows == 8) {
    body.template operator()<4, true>(0);
    body.template operator()<4, false>(4);
  } else if constexpr (kRows > 0) {
    body.template operator()<kRows, true>(0);
  } else {
    int row = 0;
    const auto next = [&]<int R>() HWY_ATTR {
      if (row == 0) {
        body.template operator()<R, true>(row);
      } else {
        body.template operator()<R, false>(row);
      }
      row += R;
    };
    while (row + 4 <= count) next.template operator()<4>();
    while (row + 2 <= count) next.template operator()<2>();
    if (row < count) next.template operator()<1>();
  }
}

}  // namespace plait::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
