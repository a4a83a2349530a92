// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The state algebra on rows in memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/device/state.h"
#include "core/host_math.h"
#include "cpu/kernel_table.h"

namespace plait::cpu {

/// (o_a, lse_a) becomes the merge of partial results a and b of `dim` elements: states, or sums.
template <bool kSum>
void merge_pair(const KernelTable& kernels, int dim, float* o_a, float& lse_a, const float* o_b,
                float lse_b) {
  const device::MergeWeights w = device::fold_weights<HostMath, kSum>(lse_a, lse_b);
  lse_a = w.lse;
  // As device::merge_element: a weight of 0 ignores its operand, and 1 keeps the other's bits.
  if (w.b == 0.0F) {
    if (w.a != 1.0F) kernels.scale_row(o_a, w.a, dim, o_a);
  } else if (w.a == 0.0F) {
    kernels.scale_row(o_b, w.b, dim, o_a);
  } else {
    kernels.blend_row(o_a, w.a, o_b, w.b, dim, o_a);
  }
}

/// Merges `count` states of `dim` elements into `o`; returns their lse. `lse_of(i)` and `row_of(i)`
/// give state i, its row until the next call; `sum` holds another row.
template <class LseOf, class RowOf>
float merge_many(const KernelTable& kernels, int dim, std::int64_t count, const LseOf& lse_of,
                 const RowOf& row_of, float* o, float* sum) {
  float largest = device::neg_inf();
  for (std::int64_t i = 0; i < count; ++i) largest = std::fmax(largest, lse_of(i));
  const float base = device::merge_base(largest);
  std::fill(o, o + dim, 0.0F);
  double total = 0.0;
  for (std::int64_t first = 0; first < count; first += device::kStatesPerSum) {
    const std::int64_t end = std::min(count, first + device::kStatesPerSum);
    float* const target = first == 0 ? o : sum;
    bool any = false;
    for (std::int64_t i = first; i < end; ++i) {
      const float weight = device::merge_weight<HostMath>(lse_of(i), base);
      if (weight == 0.0F) continue;  // an empty state may hold anything
      if (any) {
        kernels.blend_row(target, 1.0F, row_of(i), weight, dim, target);
      } else {
        kernels.scale_row(row_of(i), weight, dim, target);
      }
      any = true;
      total += static_cast<double>(weight);
    }
    if (any && target == sum) kernels.blend_row(o, 1.0F, sum, 1.0F, dim, o);
  }
  const device::MergeResult result = device::merge_result<HostMath>(base, total);
  if (result.scale != 1.0F) kernels.scale_row(o, result.scale, dim, o);
  return result.lse;
}

}  // namespace plait::cpu
