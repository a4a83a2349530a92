// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The reduction map: rows of the output from the ordered list of their partial states.
#pragma once

#include "cuda/kernels/mma/epilogue.h"

namespace plait::device::mma {

/// Merges units of a row by single threads, in plan order, so that no timing changes a bit.
struct RowMerger {
  using C = Config;
  static constexpr i32 kUnit = OutputWriter::kUnit;
  static constexpr u32 kPerRow = ceil_div(C::kHeadDimVo, kUnit);
  static constexpr i32 kBatch = kUnit == 8 ? 6 : 8;  // states in flight

  /// Canonical segments are folded as one item folds several of them. Elsewhere states are summed
  /// relative to the largest lse so far: a fold would round its lse at each of them.
  static constexpr bool kFolds = C::kCanonical || C::kSumReduction;

  struct State {
    float lse;
    float o[kUnit];
  };
  struct Total {
    float lse;  // the largest so far, until finish()
    float sum;
    float o[kUnit];
  };

  const OutputWriter& writer;
  const GroupView& group;

  /// Merges of one (merge, head) are cut into `chunks` of 32 units, a warp's work each.
  static __device__ __forceinline__ i32 chunks(const Merge& merge) {
    return ceil_div(merge.num_fused_rows * static_cast<i32>(kPerRow), 32);
  }
  __device__ __forceinline__ void merge_chunk(const Merge& merge, i32 head, i32 chunk) const {
    const u32 unit = static_cast<u32>(chunk * 32) + threadIdx.x % 32;
    if (unit >= static_cast<u32>(merge.num_fused_rows) * kPerRow) return;
    merge_unit(merge, head, static_cast<i32>(unit / kPerRow),
               static_cast<i32>(unit % kPerRow) * kUnit);
  }

 private:
  __device__ __forceinline__ void merge_unit(const Merge& merge, i32 head, i32 local,
                                             i32 dim) const {
    Total total{};
    total.lse = C::kSumReduction ? 0.0F : neg_inf();
    for (i32 first = 0; first < merge.num_refs; first += kBatch) {
      State batch[kBatch];
      // What is not set on every path is live for ptxas from the kernel's begin on, through the
      // main loop: 48 registers.
#pragma unroll
      for (State& state : batch) state = {};
#pragma unroll
      for (i32 b = 0; b < kBatch; ++b) {
        if (first + b < merge.num_refs) load(merge, first + b, head, local, dim, &batch[b]);
      }
#pragma unroll
      for (i32 b = 0; b < kBatch; ++b) {
        if (first + b < merge.num_refs) add(&total, batch[b], first + b == 0);
      }
    }
    finish(&total);
    const i32 fused = merge.fused_row_begin + local;
    const i32 kv_head = merge.head_begin + head;
    if (dim == 0) writer.write_lse(fused, kv_head, total.lse);
    writer.write(writer.open(fused, kv_head, total.lse), dim, total.o);
  }

  __device__ __forceinline__ void load(const Merge& merge, i32 index, i32 head, i32 local, i32 dim,
                                       State* state) const {
    const StateRef ref = group.ref(merge.ref_begin + index);
    const i64 row =
        static_cast<i64>(ref.state_row) + static_cast<i64>(head) * ref.head_stride + local;
    // Past L1: another multiprocessor wrote them, perhaps during this launch.
    state->lse = __ldcg(writer.p.state_lse + row);
    const float* o = writer.p.state_o + row * C::kHeadDimVo + dim;
    if constexpr (kUnit == 8) {
      const float4 low = __ldcg(reinterpret_cast<const float4*>(o));
      const float4 high = __ldcg(reinterpret_cast<const float4*>(o) + 1);
      const float words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (i32 i = 0; i < kUnit; ++i) state->o[i] = words[i];
    } else {
#pragma unroll
      for (i32 i = 0; i < kUnit; ++i) {
        state->o[i] = dim + i < C::kHeadDimVo ? __ldcg(o + i) : 0.0F;
      }
    }
  }

  static __device__ __forceinline__ void add(Total* total, const State& next, bool first) {
    if constexpr (kFolds) {
      // The first state is taken as it is: folding into the empty state changes no bit.
      const MergeWeights w = first
                                 ? MergeWeights{0.0F, 1.0F, next.lse}
                                 : fold_weights<DeviceMath, C::kSumReduction>(total->lse, next.lse);
      total->lse = w.lse;
#pragma unroll
      for (i32 i = 0; i < kUnit; ++i) total->o[i] = fold_element(w, total->o[i], next.o[i]);
    } else {
      if (next.lse == neg_inf()) return;  // and may hold anything
      const float largest = max_of(total->lse, next.lse);
      const float before = merge_weight<DeviceMath>(total->lse, largest);
      const float weight = merge_weight<DeviceMath>(next.lse, largest);
      total->lse = largest;
      total->sum = total->sum * before + weight;
#pragma unroll
      for (i32 i = 0; i < kUnit; ++i) total->o[i] = total->o[i] * before + next.o[i] * weight;
    }
  }

  static __device__ __forceinline__ void finish(Total* total) {
    if constexpr (!kFolds) {
      const MergeResult result = merge_result<DeviceMath>(total->lse, total->sum);
      total->lse = result.lse;
#pragma unroll
      for (i32 i = 0; i < kUnit; ++i) total->o[i] *= result.scale;
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

  /// Merges that are complete, their chunks spread over the warps. A call, so that its registers
  /// are not the main loop's.
  static __device__ __noinline__ void merge_all(const AttentionParams& p,
                                                const Completed* completed, i32 count) {
    const GroupView group(p);
    const OutputWriter writer{p};
    const RowMerger merger{writer, group};
    const i32 warp = static_cast<i32>(threadIdx.x / 32);
    i32 first = 0;  // chunks of the merges before
    for (i32 i = 0; i < count; ++i) {
      const Merge& merge = group.merge(completed[i].merge);
      const i32 chunks = RowMerger::chunks(merge);
      const i32 behind = (warp - first % C::kWarps + C::kWarps) % C::kWarps;
      for (i32 c = behind; c < chunks; c += C::kWarps) {
        merger.merge_chunk(merge, completed[i].head, c);
      }
      first += chunks;
    }
  }

  /// All merges of the group, dealt to the warps of the grid: a launch of its own, for plans that
  /// would leave much to few last arrivers.
  static __device__ __noinline__ void merge_grid(const AttentionParams& p) {
    const GroupView group(p);
    const OutputWriter writer{p};
    const RowMerger merger{writer, group};
    const i32 counters = group.header->num_counters;
    const i32 warps = static_cast<i32>(gridDim.x) * C::kWarps;
    const i32 slices = max_of(1, warps / max_of(1, counters));  // of the chunks of a counter
    i32 unit = static_cast<i32>(blockIdx.x) * C::kWarps + static_cast<i32>(threadIdx.x / 32);
    for (; unit < counters * slices; unit += warps) {
      const i32 heads = group.merge(0).head_count;
      const Merge& merge = group.merge(unit / slices / heads);
      for (i32 c = unit % slices; c < RowMerger::chunks(merge); c += slices) {
        merger.merge_chunk(merge, unit / slices % heads, c);
      }
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
        merge_all(p, completed, count);
      }
      __syncthreads();
    }
  }
};

}  // namespace plait::device::mma
