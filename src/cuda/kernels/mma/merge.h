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

/// Counts an item's partial states as arrived; the CTA whose state is the last of a merge does the
/// merge. Every thread of the CTA calls it, after its stores of states.
struct Arrivals {
  using C = Config;
  struct Completed {
    i32 merge, head;
  };

  /// All rows of a merge by the CTA. A call, so that its registers are not the main loop's.
  static __device__ __noinline__ void merge_rows(const AttentionParams& p, i32 index, i32 head) {
    const GroupView group(p);
    const OutputWriter writer{p};
    const RowMerger merger{writer, group};
    const Merge merge = group.merge(index);
    for (i32 local = static_cast<i32>(threadIdx.x) / 32; local < merge.num_fused_rows;
         local += C::kWarps) {
      merger.merge_row(merge, head, local, static_cast<i32>(threadIdx.x) % 32);
    }
  }

  static __device__ __forceinline__ void count(const AttentionParams& p, char* shared) {
    const GroupView group(p);
    ItemFacts& facts = *reinterpret_cast<ItemFacts*>(shared + C::kShared.facts);
    auto* completed = reinterpret_cast<Completed*>(shared + C::kShared.arrivals);
    __threadfence();  // the states, before the count
#pragma unroll 1
    for (i32 base = 0; base < facts.run.num_merges; base += kMaxArrivals) {
      if (threadIdx.x == 0) facts.last_arrivals = 0;
      __syncthreads();
      const i32 end = min_of(facts.run.num_merges - base, kMaxArrivals);
#pragma unroll 1
      for (i32 i = static_cast<i32>(threadIdx.x); i < end; i += C::kThreads) {
        const i32 index = facts.run.merge_begin + base + i;
        const Merge& merge = group.merge(index);
        const i32 head = facts.kv_head - merge.head_begin;
        if (head < 0 || head >= merge.head_count) continue;
        u32* counter = p.counters + merge.counter_begin + head;
        if (atomicAdd(counter, 1U) + 1U == static_cast<u32>(merge.num_refs)) {
          *counter = 0;  // for the next run
          completed[atomicAdd(&facts.last_arrivals, 1)] = Completed{index, head};
        }
      }
      __syncthreads();
      const i32 count = facts.last_arrivals;
      if (count > 0) {
        __threadfence();  // the count, before the other items' states
#pragma unroll 1
        for (i32 i = 0; i < count; ++i) merge_rows(p, completed[i].merge, completed[i].head);
      }
      __syncthreads();
    }
  }
};

}  // namespace plait::device::mma
