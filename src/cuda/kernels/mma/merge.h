// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The reduction map: rows of the output from the ordered list of their partial states.
#pragma once

#include "cuda/kernels/mma/epilogue.h"

namespace plait::device::mma {

/// Merges rows by whole warps, in plan order, so that no timing changes a bit.
struct RowMerger {
  using C = Config;
  static constexpr i32 kPairs = ceil_div(C::kHeadDimVo, 64);  // per lane
  static constexpr i32 kBatch = kPairs <= 2 ? 4 : 2;          // states in flight

  struct State {
    float lse;
    float2 o[kPairs];
  };

  const OutputWriter& writer;
  const GroupView& group;

  /// Row `local` of `merge` for its `head`-th head.
  __device__ __forceinline__ void merge_row(const Merge& merge, i32 head, i32 local,
                                            i32 lane) const {
    State total;
    total.lse = C::kSumReduction ? 0.0F : neg_inf();
#pragma unroll
    for (i32 i = 0; i < kPairs; ++i) total.o[i] = float2{0.0F, 0.0F};
    for (i32 first = 0; first < merge.num_refs; first += kBatch) {
      State batch[kBatch];
#pragma unroll
      for (i32 b = 0; b < kBatch; ++b) {
        if (first + b < merge.num_refs) load(merge, first + b, head, local, lane, &batch[b]);
      }
#pragma unroll
      for (i32 b = 0; b < kBatch; ++b) {
        if (first + b >= merge.num_refs) continue;
        // The first state is taken as it is: folding into the empty state changes no bit.
        if (first + b == 0) total = batch[0];
        else fold(&total, batch[b]);
      }
    }
    const i32 fused = merge.fused_row_begin + local;
    const i32 kv_head = merge.head_begin + head;
    if (lane == 0) writer.write_lse(fused, kv_head, total.lse);
    const OutputWriter::Row row = writer.open(fused, kv_head, total.lse);
#pragma unroll
    for (i32 i = 0; i < kPairs; ++i) {
      const i32 dim = lane * 2 + i * 64;
      if (dim < C::kHeadDimVo) writer.write_pair(row, dim, total.o[i].x, total.o[i].y);
    }
  }

 private:
  __device__ __forceinline__ void load(const Merge& merge, i32 index, i32 head, i32 local,
                                       i32 lane, State* state) const {
    const StateRef ref = group.ref(merge.ref_begin + index);
    const i64 row = static_cast<i64>(ref.state_row) + static_cast<i64>(head) * ref.head_stride +
                    local;
    // Past L1: another multiprocessor wrote them, perhaps during this launch.
    state->lse = __ldcg(writer.p.state_lse + row);
    const float* o = writer.p.state_o + row * C::kHeadDimVo;
#pragma unroll
    for (i32 i = 0; i < kPairs; ++i) {
      const i32 dim = lane * 2 + i * 64;
      state->o[i] = float2{0.0F, 0.0F};
      if (dim >= C::kHeadDimVo) continue;
      if constexpr (C::kHeadDimVo % 2 == 0) {
        state->o[i] = __ldcg(reinterpret_cast<const float2*>(o + dim));
      } else {
        state->o[i].x = __ldcg(o + dim);
        if (dim + 1 < C::kHeadDimVo) state->o[i].y = __ldcg(o + dim + 1);
      }
    }
  }

  static __device__ __forceinline__ void fold(State* total, const State& next) {
    const MergeWeights w = fold_weights<C::kSumReduction>(total->lse, next.lse);
    total->lse = w.lse;
#pragma unroll
    for (i32 i = 0; i < kPairs; ++i) {
      total->o[i].x = fold_element(w, total->o[i].x, next.o[i].x);
      total->o[i].y = fold_element(w, total->o[i].y, next.o[i].y);
    }
  }
};

}  // namespace plait::device::mma
