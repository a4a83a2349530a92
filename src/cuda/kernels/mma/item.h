// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// One item: fused rows of one KV head against the keys of its pieces.
#pragma once

#include "cuda/kernels/mma/epilogue.h"
#include "cuda/kernels/mma/key_table.h"
#include "cuda/kernels/mma/loader.h"
#include "cuda/kernels/mma/merge.h"
#include "cuda/kernels/mma/products.h"
#include "cuda/kernels/mma/softmax.h"
#include "cuda/kernels/mma/transform.h"

namespace plait::device::mma {

class Item {
 public:
  using C = Config;

  __device__ __forceinline__ Item(const AttentionParams& p, char* shared)
      : p_(p), shared_(shared), table_(p, shared) {}

  /// The worker's next item; false if there is none.
  __device__ __forceinline__ bool process_next() {
    __syncthreads();  // the item before may still be reading shared memory
    if (fresh_thread_index() < 32) {
      next_item(p_, &facts());
      if (fresh_thread_index() == 0) open_item();
    }
    __syncthreads();
    if (facts().item < 0) return false;
    open_rows();
    if (facts().tiles.all > 0) {
      clear_tiles();
      QueryLoader::load(p_, shared_);
      start_pipeline();
    } else {
      __syncthreads();
    }
    softmax_.rows.reset();
    clear_outputs();
    for (i32 t = 0; t < facts().tiles.all; ++t) {
      step(t);
      if constexpr (C::kCanonical) {
        if (ends_segment(t)) fold_segment(t);
      }
    }
    finish();
    if (facts().run.state_begin >= 0 && p_.merge_role == kMergeInPlace) {
      Arrivals::count(p_, shared_);
    }
    return true;
  }

 private:
  /// Zeroes the columns between the true and the padded dims, per item: results leave through the
  /// same memory.
  __device__ __forceinline__ void clear_tiles() const {
    constexpr i32 kQk = C::kHeadDimQk * C::kComputeSize;
    constexpr i32 kVo = C::kHeadDimVo * C::kComputeSize;
    constexpr i32 kQkPadded = C::kQkPadded * C::kComputeSize;
    constexpr i32 kVoPadded = C::kVoPadded * C::kComputeSize;
    clear_padding<kQk, kQkPadded, C::kShared.q_pitch>(shared_ + C::kShared.q, C::kQTile);
    for (i32 s = 0; s < (C::kWiden ? 1 : C::kStages); ++s) {
      clear_padding<kQk, kQkPadded, C::kShared.k_pitch>(Transform::key_tile(shared_, s),
                                                        C::kKvTile);
      clear_padding<kVo, kVoPadded, C::kShared.v_pitch>(Transform::value_tile(shared_, s),
                                                        C::kKvTile);
    }
  }

  __device__ __forceinline__ ItemFacts& facts() const {
    return *reinterpret_cast<ItemFacts*>(shared_ + C::kShared.facts);
  }
  /// Items count from 1, so that nobody has to reset the mark of a bad one.
  __device__ __forceinline__ bool poisoned() const {
    return *const_cast<volatile i32*>(&facts().poisoned_serial) == facts().serial;
  }

  /// Positions (with ALiBi slopes, for user variants requests) of the query rows, one thread per
  /// row.
  __device__ __forceinline__ void open_rows() const {
    const i32 local = fresh_thread_index();
    const Run& run = facts().run;
    if (local >= C::kQTile || run.num_pieces == 0) return;
    const i32 fused = run.fused_row_begin + min_of(local, run.num_fused_rows - 1);
    const i32 row = fused / C::kGroupSize;
    const RowBlock& block = facts().block;
    const GroupView group(p_);
    reinterpret_cast<i32*>(shared_ + C::kShared.query_positions)[local] =
        query_position(group, block, row);
    if constexpr (C::kAlibi) {
      const i32 head = facts().kv_head * C::kGroupSize + fused % C::kGroupSize;
      const float natural = __ldg(p_.alibi_slopes + head);
      const float slope = kHookedLogits ? natural : alibi_slope(natural);
      const i32 offset = query_position(group, block, row) - facts().first_position;
      reinterpret_cast<RowSlope*>(shared_ + C::kShared.row_slopes)[bias_slot(local)] = {
          slope, static_cast<float>(offset)};
      if constexpr (Softmax::kBases) {
        const i32 farthest =
            max_of(max_of(offset, -offset), facts().tiles.all * C::kKvTile - offset);
        if (!(slope >= 0.0F && are_small_biases(slope, farthest))) facts().bases = 0;
      }
    }
    if constexpr (C::kUser) {
      const bool spans = (block.flags & kBlockSpansRequests) != 0;
      QueryRow q;
      q.request = spans ? request_of_row(group, block.request, row) : block.request;
      const i32* indptr = plan_array<i32>(group.plan, group.header->q_indptr_offset);
      q.qo_len = indptr[q.request + 1] - indptr[q.request];
      q.kv_len = plan_array<i32>(group.plan, group.header->kv_len_offset)[q.request];
      q.head = facts().kv_head * C::kGroupSize + fused % C::kGroupSize;
      reinterpret_cast<QueryRow*>(shared_ + C::kShared.query_rows)[local] = q;
    }
  }

  __device__ __forceinline__ float k_scale() const {
    return p_.k_scales != nullptr ? __ldg(p_.k_scales + facts().kv_head) : p_.k_scale;
  }
  __device__ __forceinline__ float v_scale() const {
    return p_.v_scales != nullptr ? __ldg(p_.v_scales + facts().kv_head) : p_.v_scale;
  }

  /// What one thread finds out for all.
  __device__ __forceinline__ void open_item() {
    if (facts().item < 0) return;
    facts().q_aligned = QueryLoader::is_aligned(p_);
    if (!keys_are_aligned(p_)) facts().tiles.fast = 0;
    if (p_.pool_extent <= 0 && facts().tiles.all > 0) {
      // Every page id is a bad one, and there is no memory to read in its place.
      facts().tiles.all = 0;
      table_.report(-1);
    }
    facts().natural = Hooks::kHasKey ? p_.sm_scale : p_.sm_scale * k_scale();
    // A zero scale would turn hidden keys (-inf) into NaN; this is zero for every finite product.
    facts().base2 = fmaxf(fabsf(facts().natural) * kLog2E, 1e-37F);
    if constexpr (C::kSoftCap && !kHookedLogits) {
      facts().natural = kTanhScale * facts().natural / p_.soft_cap;
      facts().base2 = p_.soft_cap * kLog2E;
    }
    if (!may_divide_slopes(facts().base2)) facts().consecutive = 0;
    if constexpr (Softmax::kBases) {
      const ScoreScale scale{facts().base2, facts().natural};
      facts().bases =
          facts().consecutive != 0 && p_.write_state == 0 && !Softmax::is_negative(scale);
    }
  }

  __device__ __forceinline__ void clear_outputs() {
#pragma unroll
    for (i32 m = 0; m < C::kRowBlocks; ++m) {
#pragma unroll
      for (i32 n = 0; n < C::kColumnTiles; ++n) outputs_[m][n] = FragmentC{};
    }
  }

  // ---- pipeline: the tile worked off as number t lies in stage t % kStages ----------------------

  __device__ __forceinline__ void start_pipeline() {
    const i32 thread = fresh_thread_index();
    const PendingKey first = table_.fetch(thread);
    const PendingKey second = table_.fetch(C::kThreads + thread);
    table_.store(first, thread);
    table_.store(second, C::kThreads + thread);
    pending_ = table_.fetch(2 * C::kThreads + thread);
    __syncthreads();
#pragma unroll
    for (i32 t = 0; t < C::kStages - 1; ++t) load_tile(facts().tiles, t);
  }

  /// The ring of the key table holds two blocks ahead of the tile in work; the page ids of a third
  /// are on their way.
  __device__ __forceinline__ void advance_table(i32 t) {
    if (t % C::kTilesPerBlock != 0) return;
    const i32 next = (t / C::kTilesPerBlock + 2) * C::kThreads;
    if (next >= facts().tiles.all * C::kKvTile) return;
    const i32 thread = fresh_thread_index();
    table_.store(pending_, next + thread);
    pending_ = table_.fetch(next + C::kThreads + thread);
  }

  /// Always commits a group, so that the waits can count them.
  __device__ __forceinline__ void load_tile(const TileCounts& tiles, i32 t) const {
    char* stage = shared_ + C::kShared.raw + t % C::kStages * C::kShared.stage_bytes;
    const KeyRow* keys = reinterpret_cast<const KeyRow*>(shared_ + C::kShared.key_rows) +
                         t * C::kKvTile % C::kKeyRing;
    if (t < tiles.all && tile_at(tiles, t) < tiles.fast) {
      load_key_tile<true>(stage, keys);
    } else if (t < tiles.all) {
      load_unusual_tile(p_, stage, keys);
    }
    copy_async_commit();
  }

  __device__ __forceinline__ void step(i32 t) {
    TileCounts tiles;
    if constexpr (C::kStages == 1) {
      __syncthreads();
      tiles = facts().tiles;
      load_tile(tiles, t);
      copy_async_wait<0>();
      __syncthreads();
    } else {
      copy_async_wait<max_of(C::kStages - 2, 0)>();
      __syncthreads();
      tiles = facts().tiles;
      load_tile(tiles, t + C::kStages - 1);
    }
    advance_table(t);
    if constexpr (Transform::kNeeded) {
      Transform::run(p_, shared_, t % C::kStages, t * C::kKvTile % C::kKeyRing, facts().kv_head,
                     facts().block.request, Hooks::kHasKey ? k_scale() : 1.0F);
      __syncthreads();
    }
    if (WarpPlace().row >= facts().run.num_fused_rows) return;  // no row of this warp exists
    const i32 tile = tile_at(tiles, t);
    const ScoreScale scale{facts().base2, facts().natural};
    i32 part = 0;
    if constexpr (Softmax::kBases) {
      // An item's first tile has no references yet.
      if (t > 0 && facts().bases != 0 && is_full_tile(p_, facts(), tiles, tile)) {
        part = attend_with_bases(t, tile, scale.base2);
        if (part == C::kParts) return;
      }
    }
    if (kOneLoop || !is_full_tile(p_, facts(), tiles, tile) || Softmax::is_negative(scale)) {
      attend<true>(t, tile, scale, part);
    } else {
      attend<false>(t, tile, scale);
    }
  }

  /// Tiles without care (see Softmax::step) have a loop of their own: where its branch comes
  /// together again, scores are moved to other registers. With ALiBi that is attend_with_bases(),
  /// and this one is for what it leaves.
  static constexpr bool kOneLoop = Softmax::kHides || RowReferences::kShifted;

  /// The warp's part of a tile that has arrived.
  template <bool kCare>
  __device__ __forceinline__ void attend(i32 t, i32 tile, const ScoreScale& scale, i32 part = 0) {
    bool care = kCare;
    if constexpr (kOneLoop && !Softmax::kHides) {
      care = !is_full_tile(p_, facts(), facts().tiles, tile) || Softmax::is_negative(scale);
    }
    const i32 stage = t % C::kStages;
    const i32 first_key = t * C::kKvTile % C::kKeyRing;
#pragma unroll 1
    for (; part < C::kParts; ++part) {
      const WarpPlace at;
      const i32 key = part * C::kWarpKeys;
      const i32* positions =
          reinterpret_cast<const i32*>(shared_ + C::kShared.positions) + first_key + at.key;
      multiply_queries_keys(scores_, shared_ + C::kShared.q,
                            Transform::key_tile(shared_, stage) + key * C::kShared.k_pitch, at);
      softmax_.step(scores_, outputs_, scale, positions + key,
                    facts().first_position + tile * C::kKvTile + key + at.key, care, p_,
                    facts().kv_head, shared_, at);
      multiply_probabilities_values(
          outputs_, scores_, Transform::value_tile(shared_, stage) + key * C::kShared.v_pitch,
          shared_, at);
    }
  }

  /// The same for a full tile with biases as `bases`, and references that stay as they are. Ends
  /// before a part that needs another, to be made anew by attend(); returns its number, or kParts.
  __device__ __forceinline__ i32 attend_with_bases(i32 t, i32 tile, float unit) {
    const i32 stage = t % C::kStages;
#pragma unroll 1
    for (i32 part = 0; part < C::kParts; ++part) {
      const WarpPlace at;
      const i32 key = part * C::kWarpKeys;
      multiply_queries_keys(scores_, shared_ + C::kShared.q,
                            Transform::key_tile(shared_, stage) + key * C::kShared.k_pitch, at);
      const i32 last_key = tile * C::kKvTile + key + at.key + C::kWarpKeys - 1;
      const RowReferences::Attempt attempt = softmax_.attempt(scores_, unit, last_key, shared_, at);
      const bool accepted = multiply_probabilities_values<true>(
          outputs_, scores_, Transform::value_tile(shared_, stage) + key * C::kShared.v_pitch,
          shared_, at, [&] { return softmax_.rows.accept(attempt); });
      if (!accepted) return part;
    }
    return C::kParts;
  }

  // ---- results
  // -----------------------------------------------------------------------------------

  static constexpr i32 kRows = C::kRowsPerThread;

  /// Row r of this thread within the item.
  static __device__ __forceinline__ i32 row(const WarpPlace& at, i32 r) {
    return at.row + r / 2 * 16 + r % 2 * 8 + at.lane / 4;
  }
  __device__ __forceinline__ float row_sum(i32 r) const {
    float total = softmax_.rows.sum[r];
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
      const bool empty = total == 0.0F;  // no key seen
      factor = empty ? 0.0F : __fmul_rn(v_scale, fast_reciprocal(total));
      lse = empty ? neg_inf()
                  : __fmul_rn(__fadd_rn(softmax_.rows.reference[r], fast_log2(total)), kLn2);
    }
    scale_row(r, factor);
    return lse;
  }

  /// The same where the row's keys are spread over key warps: parts that will add up.
  __device__ __forceinline__ float normalise_across_warps(const WarpPlace& at, i32 r, float v_scale,
                                                          const float* references,
                                                          const float* sums) {
    float factor = v_scale;
    float lse = 0.0F;
    if constexpr (!C::kSumReduction) {
      float top = RowReferences::kLowest;
#pragma unroll
      for (i32 w = 0; w < C::kKeyWarps; ++w) {
        top = fmaxf(top, references[w * C::kQTile + row(at, r)]);
      }
      float total = 0.0F;
#pragma unroll
      for (i32 w = 0; w < C::kKeyWarps; ++w) {
        total += sums[w * C::kQTile + row(at, r)] *
                 fast_exp2(references[w * C::kQTile + row(at, r)] - top);
      }
      const bool empty = total == 0.0F;  // no key seen
      factor = empty
                   ? 0.0F
                   : fast_exp2(softmax_.rows.reference[r] - top) * v_scale * fast_reciprocal(total);
      lse = empty ? neg_inf() : (top + fast_log2(total)) * kLn2;
    }
    scale_row(r, factor);
    return lse;
  }

  /// Rows leave through shared memory: there key warps, which hold states over different keys of
  /// the same rows, merge, and from there whole rows are written.
  __device__ __forceinline__ void finish() {
    __syncthreads();  // the tiles become scratch
    const WarpPlace at;
    auto* references = reinterpret_cast<float*>(shared_ + C::kShared.row_states);
    float* sums = references + C::kKeyWarps * C::kQTile;
    auto* partial = reinterpret_cast<float*>(shared_ + C::kShared.results);
    if constexpr (C::kKeyWarps > 1 && !C::kSumReduction) {
#pragma unroll
      for (i32 r = 0; r < kRows; ++r) {
        const float total = row_sum(r);
        if (at.lane % 4 == 0 && at.column == 0) {
          references[at.key_warp * C::kQTile + row(at, r)] = softmax_.rows.reference[r];
          sums[at.key_warp * C::kQTile + row(at, r)] = total;
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      if constexpr (C::kKeyWarps == 1) {
        if (!C::kCanonical || facts().tiles.all == 0) lse_[r] = normalise(r, v_scale());
      } else {
        lse_[r] = normalise_across_warps(at, r, v_scale(), references, sums);
      }
      float* target = partial + (at.key_warp * C::kQTile + row(at, r)) * C::kShared.result_pitch;
#pragma unroll
      for (i32 n = 0; n < C::kColumnTiles; ++n) {
        const float* x = outputs_[r / 2][n].x + r % 2 * 2;
        *reinterpret_cast<float2*>(target + at.column + n * 8 + at.lane % 4 * 2) =
            float2{x[0], x[1]};
      }
    }
    __syncthreads();
    float* lse = references;  // which nobody needs any more
    if (at.key_warp == 0 && at.column == 0 && at.lane % 4 == 0) {
#pragma unroll
      for (i32 r = 0; r < kRows; ++r) lse[row(at, r)] = lse_[r];
    }
    __syncthreads();
    const OutputWriter writer{p_};
    const RowSink sink{writer, facts().run, facts().kv_head, poisoned()};
    sink.write_rows(lse, partial);
  }

  // ---- canonical segments
  // --------------------------------------------------------------------------

  __device__ __forceinline__ i32 segment_tokens() const {
    return GroupView(p_).header->segment_tokens;
  }
  __device__ __forceinline__ bool ends_segment(i32 t) const {
    const i32 end = facts().key_begin + (t + 1) * C::kKvTile;
    return t + 1 == facts().tiles.all || end % segment_tokens() == 0;
  }

  /// Closes a segment: its state is folded into the running one, which lies in the worker's part of
  /// the workspace, each thread its own elements.
  __device__ __forceinline__ void fold_segment(i32 t) {
    const bool first = facts().key_begin / segment_tokens() ==
                       (facts().key_begin + t * C::kKvTile) / segment_tokens();
    const bool last = t + 1 == facts().tiles.all;
    constexpr i64 kPerThread = kRows * C::kColumnTiles;
    auto* running = reinterpret_cast<float2*>(p_.fold_o) +
                    static_cast<i64>(blockIdx.x) * C::kThreads * kPerThread + threadIdx.x;
#pragma unroll
    for (i32 r = 0; r < kRows; ++r) {
      const float lse = normalise(r, v_scale());
      MergeWeights w{0.0F, 1.0F, lse};
      if (!first) w = fold_weights<DeviceMath, C::kSumReduction>(lse_[r], lse);
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
    softmax_.rows.reset();
  }

  const AttentionParams& p_;
  char* shared_;
  KeyTable table_;
  Softmax softmax_;
  Scores scores_;
  Outputs outputs_;
  PendingKey pending_;
  float lse_[C::kRowsPerThread] = {};
};

}  // namespace plait::device::mma
