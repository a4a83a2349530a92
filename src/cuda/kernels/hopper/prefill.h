// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Prefill on sm_90a: f16 and bf16, head dims 64, 128 and 256, query tiles of 128 fused rows, bound
// by the tensor cores.
//
// Warpgroup 0 feeds shared memory by bulk tensor copies (three warps of it: two for K, one for V;
// it hands its registers to the others), warpgroups 1 and 2 own 64 query rows each. Two overlaps
// hide the exponentials: inside a warpgroup, Q K^T of the next tile and P V of this one run while
// the softmax of the next tile waits only for the first; between the warpgroups, named barriers let
// one issue its products while the other computes exponentials. KV tiles go from last to first, so
// that the masked ones come first and the loop that matters has no mask.
//
// A row of q, k or v is 1, 2 or 4 parts of 64 elements, each of which is a row of a swizzled box.
//
// Pages: a box never leaves its page, so a tile is kTileN / kBox boxes of V and, for each part, as
// many of K, whose rows wgmma wants at one stride through the whole tile. Starting a copy costs the
// issuing warp tens of cycles, hence several warps. What a tile holds outside of its item is
// masked; rows of V outside of the list, past the end of which pages are fetched with id -1 (the
// copy engine answers with NaN), are made zero before use. Pages that boxes do not fit are gathered
// row by row: prefill_gather.h.
#pragma once

#include "cuda/kernels/hopper/prefill_gather.h"
#include "cuda/kernels/hopper/prefill_output.h"
#include "cuda/kernels/hopper/prefill_tile.h"

namespace plait::device::hopper {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

/// Waits for a tile of K or V. Gathered ones need a fence: prefill_gather.h.
/// `zero`: 0, which may seem to depend on what has to be computed before the wait.
template <class C>
PLAIT_DEVICE void wait_full(u64 (&full)[C::kStages], const Ring<C::kStages>& ring, u32 zero = 0) {
  mbarrier_wait(shared_address(&full[ring.stage]), ring.parity ^ zero);
  if constexpr (C::kGather) fence_async_shared();
}

/// Whether a warpgroup waits for P V amid the exponentials of its next tile: by then it is done,
/// and the sooner its V is released, the sooner the next one is there. Where exponentials take
/// longer than products it costs more than that.
template <class C>
inline constexpr bool kWaitsHalfWay = C::kHeadDim == 128 && !C::kSoftCap;

template <class C>
PLAIT_DEVICE void prefill_consumer(const Params& p, PrefillShared<C>& s) {
  constexpr bool kRanged = C::kCausal || C::kWindow;
  // Of the thread nothing but its warpgroup stays in a register.
  const i32 group = warp_uniform(static_cast<i32>(threadIdx.x) / 128 - 1);
  auto lane = [] { return fresh_thread_index() & 31; };
  auto last_slice = [&] { return warp_uniform(s.slices.last); };
  Ring<C::kQStages> q_ring;
  Ring<C::kStages> k_ring, v_ring;
  const u32 my_turn = kTurnBarrier + static_cast<u32>(group);
  const u32 other_turn = kTurnBarrier + static_cast<u32>(group ^ 1);
  if (group == 1) named_barrier_arrive(kTurnBarrier, kConsumerThreads);

  // Anew for every item: with one buffer its 16 descriptors would live in registers all the time.
  u32 q_address;
  auto find_queries = [&] {
    q_address =
        static_cast<u32>(warp_uniform(static_cast<i32>(shared_address(s.q[q_ring.stage][group]))));
  };
  auto q_desc = [&] { return matrix_descriptor(q_address, 1024, 0); };
  auto k_desc = [&] { return matrix_descriptor(shared_address(s.k[k_ring.stage]), 1024, 0); };
  auto v_desc = [&] {
    return matrix_descriptor(shared_address(s.v[v_ring.stage]), 1024, C::kBox * 128);
  };
  auto release = [&](u64& barrier) {
    if (lane() == 0) mbarrier_arrive(shared_address(&barrier));
  };

  LogitsHook<C> hook;
  RowBias<C> bias;
  float logits[C::kTileN / 2];
  u32 probabilities[C::kTileN / 16][4];
  float o[C::kHeadDim / 2];
  i32 index = warp_uniform(s.slices.first);
  i32 head = warp_uniform(s.works.get(p, s.slices, index).head);
  mbarrier_wait(shared_address(&s.q_full[q_ring.stage]), q_ring.parity);
  wait_full<C>(s.k_full, k_ring);
  find_queries();
  issue_logits<C>(logits, q_desc(), k_desc());
  wgmma_wait<0>();
  pin_registers(logits);
#pragma unroll 1
  while (index < last_slice()) {  // the first product of the item is ready
    const Work& w = s.works.get(p, s.slices, index);
    const Work now = w;  // read at once, what it takes to begin; registers keep nothing for later
    const TileRange tiles = tile_range<C>(now);
    const i32 full_begin = warp_uniform(kRanged ? now.full_begin : now.kv_begin);
    // Whoever looks for large logits must not see those of rows before the item.
    const bool has_strangers = C::kSoftCap && now.num_fused_rows < kWarpgroupRows;
    const i32 full_end = warp_uniform(has_strangers ? 0 : kRanged ? now.full_end : now.kv_end);
    auto is_full = [&](i32 tile_slot) {
      return tile_slot >= full_begin && tile_slot + C::kTileN <= full_end;
    };
    hook.start_head(p, head);
    SlotRange range[2];
#pragma unroll
    for (i32 r = 0; r < 2; ++r) {
      const i32 warp = static_cast<i32>(threadIdx.x) / 32 & 3;
      const i32 row = warpgroup_row(now, group) + warp * 16 + lane() / 4 + 8 * r;
      range[r] =
          visible_slots<C>(p, now, (now.fused_row_begin + max_of(row, 0)) / group_size<C>(p));
      if (C::kSoftCap && row < 0) range[r].end = range[r].begin;
      if constexpr (C::kAlibi) bias.start_row(p, now, r, row, head);
    }
    RowState rows;
    float factor[2];
    // Whether `factor` has to rescale what was accumulated before; half_way() is called amid the
    // exponentials.
    auto to_probabilities = [&](i32 tile_slot, bool first, auto&& half_way) {
      const bool full = is_full(tile_slot);
      float shift[2] = {0.0F, 0.0F};
      bool rescales;
      [[maybe_unused]] float top[2];
      if constexpr (C::kSoftCap && !C::kAlibi) {
        // Most logits are small beside their cap, which then is part of the exponent. What is not
        // seen has no say in it.
        if (!full) mask_tile<C>(logits, range, tile_slot, lane(), 0.0F);
        capped_row_maxima<C>(top, logits);
        const float far = hook.farthest(logits, fmaxf(top[0], top[1]));
        const auto capped = [&](const auto& exponent) {
          if (__any_sync(~0U, !(far <= exponent.limit()))) return false;  // NaN, too
          if (!full) {
            mask_tile<C>(logits, range, tile_slot, lane(), neg_inf());
            if constexpr (!kCapsByBits<C>) capped_row_maxima<C>(top, logits);
          }
          rescales = follow_maxima<C>(p, logits, top, first, rows, factor, exponent);
          take_exponentials<C>(logits, rows, exponent, shift, half_way);
          return true;
        };
        if (capped(hook.three_terms) || capped(hook.five_terms)) return rescales;
        const float rate = hook.tanh_rate(p, head);
#pragma unroll
        for (float& x : logits) x = scaled_tanh(__fmul_rn(x, rate));
      } else if constexpr (C::kSoftCap) {
        scaled_tanh_of<C::kTileN / 2>(hook.tanh_rate(p, head),
                                      [&](i32 i) -> float& { return logits[i]; });
      }
      float scale = hook.exponent_scale;
      if constexpr (C::kAlibi) {
        bias.template add<C::kTileN>(logits, scale, shift, p, w, tile_slot);
      }
      if (!full) mask_tile<C>(logits, range, tile_slot, lane(), neg_inf());
      const ScaledExponent exponent{scale};
      if constexpr (C::kSoftCap && !C::kAlibi) {
        capped_row_maxima<C>(top, logits);
        rescales = follow_maxima<C>(p, logits, top, first, rows, factor, exponent);
      } else {
        rescales = follow_maxima<C>(p, logits, first, rows, factor, exponent, shift);
      }
      take_exponentials<C>(logits, rows, exponent, shift, half_way);
      return rescales;
    };
    // Of tiles that reach out of the list: waits for V and clears rows.
    auto prepare_v = [&](i32 tile_slot) {
      if constexpr (C::kGather) return;  // its rows outside the list are zeros
      if (is_full(tile_slot)) return;
      const i32 first = -tile_slot;
      const i32 last = warp_uniform(w.list_end) - tile_slot;
      if (first <= 0 && last >= C::kTileN) return;
      wait_full<C>(s.v_full, v_ring);
      clear_v_tile<C>(shared_address(s.v[v_ring.stage]), first, last, group,
                      fresh_thread_index() & 127);
    };

    i32 tile_slot = tiles.base + (tiles.count - 1) * C::kTileN;
    release(s.k_empty[k_ring.stage]);
    k_ring.advance();
    if (!kStagedOutput<C> && tiles.count == 1) release(s.q_empty[0]);
    to_probabilities(tile_slot, true, [] {});
    pack_tile<C>(probabilities, logits);
    // Zeros, and not a first product that does not add: what the last item left in these registers
    // would live while states are merged.
#pragma unroll
    for (float& x : o) x = 0.0F;
    if (tiles.count > 1) {
      wait_full<C>(s.k_full, k_ring);
    }
#pragma unroll 1
    for (i32 t = tiles.count - 2; t >= 0; --t) {
      prepare_v(tile_slot);
      tile_slot -= C::kTileN;
      named_barrier_sync(my_turn, kConsumerThreads);
      issue_logits<C>(logits, q_desc(), k_desc());
      wait_full<C>(s.v_full, v_ring);
      // A product holds the warp until those before it are nearly done. With a soft cap the search
      // for large logits runs between them: P V waits for the logits after its first steps.
      constexpr u32 kSteps = C::kTileN / 16;
      constexpr u32 kFirstSteps = C::kSoftCap ? 2 : kSteps;
      issue_output<C, 0, kFirstSteps>(o, probabilities, v_desc());
      if constexpr (kFirstSteps == kSteps) named_barrier_arrive(other_turn, kConsumerThreads);
      wgmma_wait<1>();
      pin_registers(logits);
      release(s.k_empty[k_ring.stage]);
      k_ring.advance();
      if constexpr (kFirstSteps < kSteps) {
        issue_output<C, kFirstSteps, kSteps>(o, probabilities, v_desc());
        named_barrier_arrive(other_turn, kConsumerThreads);
      }
      if (!kStagedOutput<C> && t == 0) release(s.q_empty[0]);
      // The wait for the next K is due anyway; here its branch also keeps ptxas from hoisting the
      // wait for P V above the exponentials, which it does in straight-line code.
      auto wait_for_output = [&](u32 zero) {
        if (t > 0) wait_full<C>(s.k_full, k_ring, zero);
        wgmma_wait<0>();
        pin_registers(o);
        release(s.v_empty[v_ring.stage]);
        v_ring.advance();
      };
      const bool rescales = to_probabilities(tile_slot, false, [&] {
        // That it seems to depend on the first row's sum keeps that row's exponentials above it.
        if constexpr (kWaitsHalfWay<C>) wait_for_output(rows.sum[0] < 0.0F ? 1U : 0U);
      });
      pin_registers(logits);
      if constexpr (!kWaitsHalfWay<C>) wait_for_output(0);
      if (rescales) rescale(o, factor);
      pack_tile<C>(probabilities, logits);
    }
    prepare_v(tile_slot);
    wait_full<C>(s.v_full, v_ring);
    issue_output<C>(o, probabilities, v_desc());

    // The next item's first product runs while this one's output is written. After the last item it
    // is a product of whatever lies there, which nobody reads: a condition would make the compiler
    // wait.
    const u32 staging = shared_address(s.q[q_ring.stage][group]);
    u64& q_empty = s.q_empty[q_ring.stage];
    const i32 this_head = head;
    if (++head >= warp_uniform(w.head + w.count) && ++index < last_slice()) {
      head = warp_uniform(s.works.get(p, s.slices, index).head);
    }
    q_ring.advance();
    find_queries();
    if (index < last_slice()) {
      mbarrier_wait(shared_address(&s.q_full[q_ring.stage]), q_ring.parity);
      wait_full<C>(s.k_full, k_ring);
    }
    issue_logits<C>(logits, q_desc(), k_desc());
    wgmma_wait<1>();
    pin_registers(o);
    release(s.v_empty[v_ring.stage]);
    v_ring.advance();
    if constexpr (kStagedOutput<C>) {
      // All warps of the group have read the queries: their buffer may take the output.
      named_barrier_sync(kWarpgroupBarrier + static_cast<u32>(group), 128);
    }
    write_rows<C>(p, w, this_head, o, rows, group, staging, [&] {
      if constexpr (kStagedOutput<C>) {
        fence_async_shared();
        __syncwarp();
        release(q_empty);
      }
    });
    wgmma_wait<0>();
    pin_registers(logits);
    if (counts_arrivals(p, w)) {
      named_barrier_sync(kMergeBarrier, kConsumerThreads);
      arrive_and_merge<C>(p, w, this_head, MergeAhead(p, w.merge_begin), s.merge_flags,
                          fresh_thread_index() - 128, kConsumerThreads, kMergeBarrier);
    }
  }
}

template <class C>
PLAIT_DEVICE void prefill_worker(const HopperParams& p, PrefillShared<C>& s) {
  const i32 tid = static_cast<i32>(threadIdx.x);
  const SliceRange slices = worker_slices(p.common, static_cast<i32>(blockIdx.x));
  if (slices.first >= slices.last) return;
  if (tid == 0) {
    prefetch_tensor_map(&p.q_map);
    if constexpr (!C::kGather) {
      prefetch_tensor_map(&p.k_map);
      prefetch_tensor_map(&p.v_map);
    }
    s.slices = slices;
    constexpr u32 kConsumerWarps = kConsumerThreads / 32;
    for (i32 i = 0; i < C::kQStages; ++i) {
      mbarrier_init(shared_address(&s.q_full[i]), 1);
      mbarrier_init(shared_address(&s.q_empty[i]), kConsumerWarps);
    }
    for (i32 i = 0; i < C::kStages; ++i) {
      mbarrier_init(shared_address(&s.k_full[i]), kFillArrivals<C, false>);
      mbarrier_init(shared_address(&s.k_empty[i]), kConsumerWarps);
      mbarrier_init(shared_address(&s.v_full[i]), kFillArrivals<C, true>);
      mbarrier_init(shared_address(&s.v_empty[i]), kConsumerWarps);
    }
    fence_mbarrier_init();
  }
  s.works.fill(p.common, slices, static_cast<i32>(threadIdx.x), static_cast<i32>(blockDim.x));
  __syncthreads();
  if (tid < 128) {
    release_registers<kProducerRegisters<C>>();
    if constexpr (C::kGather) {
      prefill_gather<C>(p, s);
    } else {
      prefill_producer<C>(p, s);
    }
  } else {
    acquire_registers<kConsumerRegisters<C>>();
    prefill_consumer<C>(p.common, s);
  }
}

template <class C>
PLAIT_DEVICE void prefill_entry(const HopperParams& p) {
  extern __shared__ unsigned char dynamic_shared[];
  const u32 base = shared_address(dynamic_shared);
  auto& shared = *reinterpret_cast<PrefillShared<C>*>(dynamic_shared + (-base & 1023));
  if constexpr (C::kMeasured) record_worker_begin(p.common);
  allow_next_grid();
  prefetch_plan(p.common);
  prefill_worker<C>(p, shared);
  if constexpr (C::kMeasured) record_worker_end(p.common);
  wait_for_previous_grid();
}

/// Dynamic shared memory of a launch: the struct at the next multiple of its alignment.
template <class C>
inline constexpr u32 kPrefillSharedBytes = sizeof(PrefillShared<C>) + 1024;

#endif

}  // namespace plait::device::hopper
