// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The state algebra, one source for every backend. Inside Plait a softmax state is (o, lse) with o
// normalised and lse in natural log, both f32; (0, -inf) is the empty state.
#pragma once

#include "core/device/portable.h"

namespace plait::device {

PLAIT_HD float neg_inf() { return __builtin_bit_cast(float, 0xFF800000U); }

/// Weights with which two softmax states merge: o = wa * oa + wb * ob.
struct MergeWeights {
  float a, b, lse;
};

/// `Math` supplies exp(float) and log(float). The empty state is the exact neutral element: its
/// partner gets weight 1, so that merging with it changes no bit.
template <class Math>
PLAIT_HD MergeWeights merge_weights(float lse_a, float lse_b) {
  if (lse_b == neg_inf()) return {1.0F, 0.0F, lse_a};
  if (lse_a == neg_inf()) return {0.0F, 1.0F, lse_b};
  const float m = max_of(lse_a, lse_b);
  const float wa = Math::exp(lse_a - m);
  const float wb = Math::exp(lse_b - m);
  const float sum = wa + wb;
  const float inv = 1.0F / sum;
  return {wa * inv, wb * inv, m + Math::log(sum)};
}

/// The weights of a reduction: partial results of a sum simply add, and have no lse.
template <class Math, bool kSum>
PLAIT_HD MergeWeights fold_weights(float lse_a, float lse_b) {
  if constexpr (kSum) return {1.0F, 1.0F, 0.0F};
  return merge_weights<Math>(lse_a, lse_b);
}

/// One element of a merged output. A weight of exactly 0 ignores its operand, so that an empty
/// state may hold anything.
PLAIT_HD float merge_element(const MergeWeights& w, float oa, float ob) {
  if (w.b == 0.0F) return w.a == 1.0F ? oa : w.a * oa;
  if (w.a == 0.0F) return w.b == 1.0F ? ob : w.b * ob;
  return w.a * oa + w.b * ob;
}

/// Many states merge at once, in their order, relative to their largest lse: each weighs
/// merge_weight(lse, base), and merge_result turns the sums into a state. A fold would round its
/// lse at every one of them. A weight of exactly 0 ignores its operand, as above.
PLAIT_HD float merge_base(float largest_lse) {
  return largest_lse == neg_inf() ? 0.0F : largest_lse;
}
template <class Math>
PLAIT_HD float merge_weight(float lse, float base) {
  return Math::exp(lse - base);
}

/// States whose weights and outputs are summed apart before they join the others: thousands of
/// small terms, one by one, would round away against their sum.
inline constexpr i32 kStatesPerSum = 128;

struct MergeResult {
  float scale;  // of the weighted sum of outputs
  float lse;
};
/// `total`, the sum of the weights, may be wider than float, as Math::log then is.
template <class Math, class Total>
PLAIT_HD MergeResult merge_result(float base, Total total) {
  if (total == Total{0}) return {0.0F, neg_inf()};
  return {static_cast<float>(Total{1} / total),
          static_cast<float>(static_cast<Total>(base) + Math::log(total))};
}

/// Factor that an attention sink puts on a finished output: the sink joins the denominator once.
/// 0 for an empty row, whatever the sink.
template <class Math>
PLAIT_HD float sink_factor(float lse, float sink) {
  if (lse == neg_inf()) return 0.0F;
  if (sink == neg_inf()) return 1.0F;
  if (sink > lse) {
    const float r = Math::exp(lse - sink);
    return r / (r + 1.0F);
  }
  return 1.0F / (1.0F + Math::exp(sink - lse));
}

}  // namespace plait::device
