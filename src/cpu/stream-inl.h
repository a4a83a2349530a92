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
#include <cstddef>
#include <cstdint>

#include "cpu/fetch-inl.h"
#include "cpu/fold-inl.h"
#include "cpu/kernel_table.h"
#include "cpu/load-inl.h"
#include "cpu/score-inl.h"
#include "cpu/simd-inl.h"
#include "cpu/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace plait::cpu::HWY_NAMESPACE {

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

/// A step, block by block. kRows as in for_row_blocks; unless it is 0, dims are whole vectors, as
/// score_block and fold_block take them.
template <class Keys, class Load, int kRows>
void stream_blocks(const StreamStep& t, const typename Keys::Query* queries, std::ptrdiff_t q_ld) {
  constexpr int kSize = sizeof(typename Load::Element);
  // The more keys of a head are folded in together, the fewer passes over o; but while they wait
  // for their turn, the rows of all heads have to stay in the first cache.
  const int in_cache = 16384 / (t.num_heads * t.dim_vo * kSize) / 4 * 4;
  const int unit = t.head_run == 1 ? std::clamp(in_cache, 4, 8) : std::max(16, t.head_run);
  Fetcher fetcher(t, kSize);
  HWY_ALIGN float alpha[kStreamRows];
  for (int begin = 0; begin < t.num_keys; begin += kStreamBlock) {
    const int count = std::min(kStreamBlock, t.num_keys - begin);
    score_block<Keys, kRows>(t, queries, q_ld, begin, count, fetcher);
    softmax_block(t, count, alpha);
    fold_block<Load, kRows>(t, begin, count, unit, alpha, fetcher);
  }
}

/// `queries` are those of the step, as Keys takes them.
template <class Keys, class Load>
void stream(const StreamStep& t, const typename Keys::Query* queries, std::ptrdiff_t q_ld) {
  if constexpr (kSplit<Load>) reorder_output<false>(t);
  const bool whole = t.dim_qk % Keys::kStep == 0 && t.dim_vo % (4 * kLanes) == 0;
  switch (whole ? t.num_rows : 0) {
    case 1: stream_blocks<Keys, Load, 1>(t, queries, q_ld); break;
    case 2: stream_blocks<Keys, Load, 2>(t, queries, q_ld); break;
    case 4: stream_blocks<Keys, Load, 4>(t, queries, q_ld); break;
    case 8: stream_blocks<Keys, Load, 8>(t, queries, q_ld); break;
    default: stream_blocks<Keys, Load, 0>(t, queries, q_ld);
  }
  if constexpr (kSplit<Load>) reorder_output<true>(t);
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
