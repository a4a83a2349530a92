// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// One item: fused rows of one KV head against the keys of its pieces.
#pragma once

#include "cuda/kernels/mma/epilogue.h"
#include "cuda/kernels/mma/key_table.h"
#include "cuda/kernels/mma/loader.h"
#include "cuda/kernels/mma/products.h"
#include "cuda/kernels/mma/softmax.h"
#include "cuda/kernels/mma/transform.h"

namespace plait::device::mma {

class Item {
 public:
  using C = Config;

  __device__ __forceinline__ Item(const AttentionParams& p, const GroupView& group, char* shared)
      : p_(p), group_(group), shared_(shared), table_(p, group, shared) {
    if (threadIdx.x == 0) facts().poisoned_serial = 0;
  }

  __device__ __forceinline__ void process(i32 run, i32 head) {
    __syncthreads();  // the item before may still be reading shared memory
    if (threadIdx.x < 32) load_facts(group_, run, &facts());
    ++serial_;
    __syncthreads();
    const i32 kv_head = facts().run.head_begin + head;
    range_.open(group_, facts());
    open_rows(kv_head);
    if (range_.num_tiles > 0) {
      clear_tiles();
      QueryLoader::load(p_, group_, facts().run, facts().block, kv_head, shared_);
      start_pipeline(kv_head);
    } else {
      __syncthreads();
    }
    open_scales(kv_head);
    softmax_.reset();
    clear_outputs();
    for (i32 t = 0; t < range_.num_tiles; ++t) {
      step(t, kv_head);
      if constexpr (C::kCanonical) {
        if (ends_segment(t)) fold_segment(t, kv_head);
      }
    }
    finish(kv_head);
  }

 private:
  /// Zeroes the columns between the true and the padded dims, per item: results leave through the
  /// same memory.
  __device__ __forceinline__ void clear_tiles() const {
    constexpr i32 kQk = C::kHeadDimQk * C::kComputeSize;
    constexpr i32 kVo = C::kHeadDimVo * C::kComputeSize;
    constexpr i32 kQkPadded = C::kQkPadded * C::kComputeSize;
    constexpr i32 kVoPadded = C::kVoPadded * C::kComputeSize;
    clear_padding<kQk, kQkPadded, C::kQPitch>(shared_ + SharedPlan::q, C::kQTile);
    for (i32 s = 0; s < (C::kWiden ? 1 : C::kStages); ++s) {
      clear_padding<kQk, kQkPadded, C::kKPitch>(Transform::key_tile(shared_, s), C::kKvTile);
      clear_padding<kVo, kVoPadded, C::kVPitch>(Transform::value_tile(shared_, s), C::kKvTile);
    }
  }

  __device__ __forceinline__ ItemFacts& facts() const {
    return *reinterpret_cast<ItemFacts*>(shared_ + SharedPlan::facts);
  }
  /// Items count from 1, so that nobody has to reset the mark.
  __device__ __forceinline__ bool poisoned() const {
    return *const_cast<volatile i32*>(&facts().poisoned_serial) == serial_;
  }

  /// Positions (and for user variants requests) of the query rows, one thread per row.
  __device__ __forceinline__ void open_rows(i32 kv_head) const {
    const i32 local = static_cast<i32>(threadIdx.x);
    const Run& run = facts().run;
    if (local >= C::kQTile || run.num_pieces == 0) return;
    const i32 fused = run.fused_row_begin + min_of(local, run.num_fused_rows - 1);
    const i32 row = fused / C::kGroupSize;
    const RowBlock& block = facts().block;
    reinterpret_cast<i32*>(shared_ + SharedPlan::query_positions)[local] =
        query_position(group_, block, row);
    if constexpr (C::kUser) {
      const bool spans = (block.flags & kBlockSpansRequests) != 0;
      QueryRow q;
      q.request = spans ? request_of_row(group_, block.request, row) : block.request;
      const i32* indptr = plan_array<i32>(group_.plan, group_.header->q_indptr_offset);
      q.qo_len = indptr[q.request + 1] - indptr[q.request];
      q.kv_len = plan_array<i32>(group_.plan, group_.header->kv_len_offset)[q.request];
      q.head = kv_head * C::kGroupSize + fused % C::kGroupSize;
      reinterpret_cast<QueryRow*>(shared_ + SharedPlan::query_rows)[local] = q;
    }
  }

  __device__ __forceinline__ float k_scale(i32 kv_head) const {
    return p_.k_scales != nullptr ? __ldg(p_.k_scales + kv_head) : p_.k_scale;
  }
  __device__ __forceinline__ float v_scale(i32 kv_head) const {
    return p_.v_scales != nullptr ? __ldg(p_.v_scales + kv_head) : p_.v_scale;
  }

  __device__ __forceinline__ void open_scales(i32 kv_head) {
    scale_.natural = Hooks::kHasKey ? p_.sm_scale : p_.sm_scale * k_scale(kv_head);
    scale_.negative = scale_.natural < 0.0F;
    // A zero scale would turn hidden keys (-inf) into NaN; this is zero for every finite product.
    scale_.base2 = fmaxf(fabsf(scale_.natural) * kLog2E, 1e-37F);
  }

  __device__ __forceinline__ void clear_outputs() {
#pragma unroll
    for (i32 m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
      for (i32 n = 0; n < C::kColumnTiles; ++n) outputs_[m][n] = FragmentC{};
    }
  }

  // ---- pipeline: tile t lies in stage t % kStages, its key table in t % kTableStages ------------

  __device__ __forceinline__ void start_pipeline(i32 kv_head) {
    k_base_ = static_cast<const char*>(p_.k) + kv_head * p_.k_stride_head * C::kKvSize;
    v_base_ = static_cast<const char*>(p_.v) + kv_head * p_.v_stride_head * C::kKvSize;
    const i32 row = static_cast<i32>(threadIdx.x);
    if (row < C::kKvTile) {
      PendingKey first[C::kStages];
#pragma unroll
      for (i32 t = 0; t < C::kStages; ++t) first[t] = table_.fetch(range_, t, row);
#pragma unroll
      for (i32 t = 0; t < C::kStages; ++t) table_.store(first[t], t, row, serial_);
      pending_ = table_.fetch(range_, C::kStages, row);
    }
    __syncthreads();
#pragma unroll
    for (i32 t = 0; t < C::kStages - 1; ++t) load_tile(t);
  }

  /// Always commits a group, so that the waits can count them.
  __device__ __forceinline__ void load_tile(i32 t) const {
    if (t < range_.num_tiles) {
      char* stage = shared_ + SharedPlan::raw + t % C::kStages * SharedPlan::kStageBytes;
      const i64* offsets = reinterpret_cast<const i64*>(
          reinterpret_cast<const KeyRow*>(shared_ + SharedPlan::key_rows) +
          t % SharedPlan::kTableStages * C::kKvTile);
      load_key_rows<C::kHeadDimQk * C::kKvSize, C::kRawKPitch>(stage, k_base_, offsets);
      load_key_rows<C::kHeadDimVo * C::kKvSize, C::kRawVPitch>(stage + SharedPlan::kRawK, v_base_,
                                                               offsets + 1);
    }
    copy_async_commit();
  }

  __device__ __forceinline__ void advance_table(i32 t) {
    const i32 row = static_cast<i32>(threadIdx.x);
    if (row < C::kKvTile && t + C::kStages < range_.num_tiles) {
      table_.store(pending_, (t + C::kStages) % SharedPlan::kTableStages, row, serial_);
      pending_ = table_.fetch(range_, t + C::kStages + 1, row);
    }
  }

  __device__ __forceinline__ void step(i32 t, i32 kv_head) {
    if constexpr (C::kStages == 1) {
      __syncthreads();
      load_tile(t);
      copy_async_wait<0>();
      __syncthreads();
    } else {
      copy_async_wait<max_of(C::kStages - 2, 0)>();
      __syncthreads();
      load_tile(t + C::kStages - 1);
    }
    advance_table(t);
    const i32 stage = t % C::kStages;
    const i32 table_stage = t % SharedPlan::kTableStages;
    if constexpr (Transform::kNeeded) {
      Transform::run(p_, shared_, stage, table_stage, kv_head, facts().block.request,
                     Hooks::kHasKey ? k_scale(kv_head) : 1.0F);
      __syncthreads();
    }
    const bool full = range_.is_full(group_, facts(), t);
    if (at_.row >= facts().run.num_fused_rows) return;  // no row of this warp exists
    multiply_queries_keys(scores_, shared_ + SharedPlan::q, Transform::key_tile(shared_, stage),
                          at_);
    const i32* positions = reinterpret_cast<const i32*>(shared_ + SharedPlan::positions) +
                           table_stage * C::kKvTile + at_.key;
    softmax_.step(scores_, outputs_, scale_, positions, !full, p_, kv_head, shared_, at_);
    multiply_probabilities_values(outputs_, scores_, Transform::value_tile(shared_, stage), shared_,
                                  at_);
  }

  // ---- results -----------------------------------------------------------------------------------

  static constexpr i32 kRows = C::kRowsPerThread;

  /// Row r of this thread within the item.
  __device__ __forceinline__ i32 row(i32 r) const {
    return at_.row + r / 2 * 16 + r % 2 * 8 + at_.lane / 4;
  }
  __device__ __forceinline__ float row_sum(i32 r) const {
    float total = softmax_.sum[r];
    total = __fadd_rn(total, __shfl_xor_sync(0xFFFFFFFFU, total, 1));
    return __fadd_rn(total, __shfl_xor_sync(0xFFFFFFFFU, total, 2));
  }
  __device__ __forceinline__ void scale_row(i32 r, float factor) {
#pragma unroll
    for (i32 n = 0; n < C::kColumnTiles; ++n) {
      float* x = outputs_[r / 2][n].x + r % 2 * 2;
      x[0] = __fmul_rn(x[0], factor);
      x[1] = __fmul_rn(x[1], factor);
    }
  }

  /// Normalises the outputs of row r; returns its lse.
  __device__ __forceinline__ float normalise(i32 r, float v_scale) {
    float factor = v_scale;
    float lse = 0.0F;
    if constexpr (!C::kSumReduction) {
      const float total = row_sum(r);
      const bool empty = softmax_.maximum[r] == neg_inf();
      factor = empty ? 0.0F : __fdiv_rn(v_scale, total);
      lse = empty ? neg_inf()
                  : __fmul_rn(__fadd_rn(softmax_.maximum[r], fast_log2(total)), kLn2);
    }
    scale_row(r, factor);
    return lse;
  }

  /// The same where the row's keys are spread over key warps: parts that will add up.
  __device__ __forceinline__ float normalise_across_warps(i32 r, float v_scale, const float* maxima,
                                                          const float* sums) {
    float factor = v_scale;
    float lse = 0.0F;
    if constexpr (!C::kSumReduction) {
      float top = neg_inf();
#pragma unroll
      for (i32 w = 0; w < C::kKeyWarps; ++w) top = fmaxf(top, maxima[w * C::kQTile + row(r)]);
      factor = 0.0F;
      lse = neg_inf();
      if (top != neg_inf()) {
        float total = 0.0F;
#pragma unroll
        for (i32 w = 0; w < C::kKeyWarps; ++w) {
          total += sums[w * C::kQTile + row(r)] * fast_exp2(maxima[w * C::kQTile + row(r)] - top);
        }
        factor = fast_exp2(softmax_.maximum[r] - top) * v_scale / total;
        lse = (top + fast_log2(total)) * kLn2;
      }
    }
    scale_row(r, factor);
    return lse;
  }

  /// Rows leave through shared memory: there key warps, which hold states over different keys of the
  /// same rows, merge, and from there whole rows are written.
  __device__ __forceinline__ void finish(i32 kv_head) {
    __syncthreads();  // the tiles become scratch
    auto* maxima = reinterpret_cast<float*>(shared_ + SharedPlan::merge_state);
    float* sums = maxima + C::kKeyWarps * C::kQTile;
    auto* partial = reinterpret_cast<float*>(shared_ + SharedPlan::merge_output);
    if constexpr (C::kKeyWarps > 1 && !C::kSumReduction) {
#pragma unroll
      for (i32 r = 0; r < kRows; ++r) {
        const float total = row_sum(r);
        if (at_.lane % 4 == 0 && at_.column == 0) {
          maxima[at_.key_warp * C::kQTile + row(r)] = softmax_.maximum[r];
          sums[at_.key_warp * C::kQTile + row(r)] = total;
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      if constexpr (C::kKeyWarps == 1) {
        if (!C::kCanonical || range_.num_tiles == 0) lse_[r] = normalise(r, v_scale(kv_head));
      } else {
        lse_[r] = normalise_across_warps(r, v_scale(kv_head), maxima, sums);
      }
      float* target = partial + (at_.key_warp * C::kQTile + row(r)) * SharedPlan::kMergePitch;
#pragma unroll
      for (i32 n = 0; n < C::kColumnTiles; ++n) {
        const float* x = outputs_[r / 2][n].x + r % 2 * 2;
        *reinterpret_cast<float2*>(target + at_.column + n * 8 + at_.lane % 4 * 2) =
            float2{x[0], x[1]};
      }
    }
    __syncthreads();
    if (at_.key_warp == 0 && at_.column == 0 && at_.lane % 4 == 0) {
#pragma unroll
      for (i32 r = 0; r < kRows; ++r) maxima[row(r)] = lse_[r];
    }
    __syncthreads();
    const OutputWriter writer{p_, group_};
    const RowSink sink{writer, facts().run, kv_head, poisoned()};
#pragma unroll 1
    for (i32 local = at_.warp; local < facts().run.num_fused_rows; local += C::kWarps) {
      sink.write_row(local, maxima[local], partial + local * SharedPlan::kMergePitch, at_.lane);
    }
  }

  // ---- canonical segments --------------------------------------------------------------------------

  __device__ __forceinline__ bool ends_segment(i32 t) const {
    const i32 end = range_.begin + (t + 1) * C::kKvTile;
    return t + 1 == range_.num_tiles || end % group_.header->segment_tokens == 0;
  }

  /// Closes a segment: its state is folded into the running one, which lies in the worker's part of
  /// the workspace, each thread its own elements.
  __device__ __forceinline__ void fold_segment(i32 t, i32 kv_head) {
    const bool first =
        range_.begin / group_.header->segment_tokens ==
        (range_.begin + t * C::kKvTile) / group_.header->segment_tokens;
    const bool last = t + 1 == range_.num_tiles;
    constexpr i64 kPerThread = kRows * C::kColumnTiles;
    auto* running = reinterpret_cast<float2*>(p_.fold_o) +
                    static_cast<i64>(blockIdx.x) * C::kThreads * kPerThread + threadIdx.x;
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      const float lse = normalise(r, v_scale(kv_head));
      MergeWeights w{0.0F, 1.0F, lse};
      if (!first) w = fold_weights<C::kSumReduction>(lse_[r], lse);
      lse_[r] = w.lse;
#pragma unroll
      for (i32 n = 0; n < C::kColumnTiles; ++n) {
        float* x = outputs_[r / 2][n].x + r % 2 * 2;
        float2* slot = running + (r * C::kColumnTiles + n) * C::kThreads;
        if (!first) {
          const float2 before = *slot;
          x[0] = fold_element(w, before.x, x[0]);
          x[1] = fold_element(w, before.y, x[1]);
        }
        if (!last) {
          *slot = float2{x[0], x[1]};
          x[0] = 0.0F;
          x[1] = 0.0F;
        }
      }
    }
    softmax_.reset();
  }

  const AttentionParams& p_;
  const GroupView& group_;
  char* shared_;
  KeyTable table_;
  KeyRange range_;
  WarpPlace at_;
  ScoreScale scale_;
  Softmax softmax_;
  Scores scores_;
  Outputs outputs_;
  PendingKey pending_;
  const char* k_base_ = nullptr;
  const char* v_base_ = nullptr;
  float lse_[C::kRowsPerThread] = {};
  i32 serial_ = 0;
};

}  // namespace plait::device::mma
