// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// From accumulators to states, merges and finished rows.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numbers>

#include "cpu/item.h"
#include "cpu/merge_rows.h"

namespace plait::cpu {

using device::Merge;
using device::Run;
using device::StateRef;

namespace {

/// (o_a, lse_a) becomes the merge of partial results a and b, in the arithmetic that every path
/// shares.
void merge_into(const Layer& layer, float* o_a, float& lse_a, const float* o_b, float lse_b) {
  const auto merge = layer.softmax ? merge_pair<false> : merge_pair<true>;
  merge(*layer.kernels, layer.dim_vo, o_a, lse_a, o_b, lse_b);
}

}  // namespace

/// Normalises the accumulators into a state in `folded`, merging it to the segments before.
void ItemRunner::end_segment(const Layer& layer) {
  const float v_scale = layer.v_scale(kv_head_);
  for (int r = base_; r < base_ + rows_; ++r) {
    float* o = scratch_.o + r * layer.pad_vo;
    float lse = 0.0F;
    float factor = v_scale;
    if (layer.softmax) {
      const bool empty = l_[r] == 0.0F;
      factor = empty ? 0.0F : v_scale / l_[r];
      lse = empty ? kMinusInfinity
                  : static_cast<float>(
                        (static_cast<double>(m_[r]) + std::log2(static_cast<double>(l_[r]))) *
                        std::numbers::ln2);
    }
    float* folded = scratch_.folded + r * layer.pad_vo;
    if (!folded_any_) {
      layer.kernels->scale_row(o, factor, layer.dim_vo, folded);
      lse_[r] = lse;
    } else {
      layer.kernels->scale_row(o, factor, layer.dim_vo, o);
      merge_into(layer, folded, lse_[r], o, lse);
    }
  }
  folded_any_ = true;
}

void ItemRunner::finish_merges(const Layer& layer, const Run& run, std::int32_t kv_head) {
  for (std::int32_t i = 0; i < run.num_merges; ++i) {
    const Merge& target = layer.plan.merge(run.merge_begin + i);
    std::int32_t& counter = layer.counters[target.counter_begin + kv_head - target.head_begin];
    // The last arriver sees every partial state and merges them in plan order.
    const std::int32_t arrived =
        std::atomic_ref<std::int32_t>(counter).fetch_add(1, std::memory_order_acq_rel) + 1;
    if (arrived != target.num_refs) continue;
    if (!measure_merges_) {
      merge(layer, target, kv_head);
      continue;
    }
    const auto begin = std::chrono::steady_clock::now();
    merge(layer, target, kv_head);
    merge_ns_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  }
}

void ItemRunner::write_rows(const Layer& layer, const Run& run, int first) {
  for (int r = base_; r < base_ + rows_; ++r) {
    float* o = scratch_.folded + r * layer.pad_vo;
    if (run.state_begin < 0) {
      write_output(layer, q_row_[r], qo_head_[r], o, lse_[r]);
      continue;
    }
    const std::int64_t row = std::int64_t{run.state_begin} +
                             std::int64_t{kv_head_ - run.head_begin} * run.num_fused_rows + first +
                             (r - base_);
    std::copy(o, o + layer.dim_vo, layer.state_o + row * layer.dim_vo);
    layer.state_lse[row] = lse_[r];
  }
}

float ItemRunner::merge_row(const Layer& layer, const Merge& merge, std::int32_t head_offset,
                            std::int32_t row) {
  float* const o = scratch_.o;
  const auto state_row = [&](std::int64_t i) {
    const StateRef& ref = layer.plan.ref(merge.ref_begin + static_cast<std::int32_t>(i));
    return std::int64_t{ref.state_row} + std::int64_t{head_offset} * ref.head_stride + row;
  };
  if (!layer.softmax || layer.plan.header->segment_tokens > 0) {
    // Canonical segments: the fold that one item makes of several segments.
    float lse = layer.softmax ? kMinusInfinity : 0.0F;
    if (merge.num_refs == 0) std::fill(o, o + layer.dim_vo, 0.0F);
    for (std::int32_t i = 0; i < merge.num_refs; ++i) {
      const float* partial = layer.state_o + state_row(i) * layer.dim_vo;
      if (i == 0) {
        std::copy(partial, partial + layer.dim_vo, o);
        lse = layer.state_lse[state_row(i)];
      } else {
        merge_into(layer, o, lse, partial, layer.state_lse[state_row(i)]);
      }
    }
    return lse;
  }
  return merge_many(
      *layer.kernels, layer.dim_vo, merge.num_refs,
      [&](std::int64_t i) { return layer.state_lse[state_row(i)]; },
      [&](std::int64_t i) { return layer.state_o + state_row(i) * layer.dim_vo; }, o,
      scratch_.folded);
}

void ItemRunner::merge(const Layer& layer, const Merge& merge, std::int32_t kv_head) {
  const int g = layer.group_size;
  for (std::int32_t r = 0; r < merge.num_fused_rows; ++r) {
    const float lse = merge_row(layer, merge, kv_head - merge.head_begin, r);
    const std::int32_t fused = merge.fused_row_begin + r;
    write_output(layer, fused / g, kv_head * g + fused % g, scratch_.o, lse);
  }
}

/// Writes one finished row: as a state, or finalised by sink and output hook.
void ItemRunner::write_output(const Layer& layer, std::int32_t q_row, std::int32_t qo_head,
                              float* o, float lse) {
  const RunArgs& args = *layer.args;
  if (!args.state) {
    if (layer.spec->sink) {
      const float sink = static_cast<const float*>(args.sink.data)[qo_head * args.sink.strides[0]];
      const float factor = device::sink_factor<HostMath>(lse, sink);
      if (factor != 1.0F) layer.kernels->scale_row(o, factor, layer.dim_vo, o);
    }
    if (layer.variant != nullptr && layer.variant->hooks().output != nullptr) {
      const std::int32_t request = layer.plan.request_of(q_row);
      const std::int32_t* indptr = layer.plan.q_indptr();
      const std::int32_t pos = q_row - indptr[request] + layer.plan.kv_len(request) -
                               (indptr[request + 1] - indptr[request]);
      layer.variant->hooks().output(o, layer.dim_vo, request, pos, qo_head,
                                    layer.variant->params());
    }
  }
  const std::int64_t offset = q_row * args.o.strides[0] + qo_head * args.o.strides[1];
  layer.kernels->store_row[static_cast<int>(args.o.dtype)](
      o, layer.dim_vo, static_cast<char*>(args.o.data) + offset * size_of(args.o.dtype));
  if (args.lse.defined()) {
    static_cast<float*>(
        args.lse.data)[q_row * args.lse.strides[0] + qo_head * args.lse.strides[1]] = lse;
  }
}

}  // namespace plait::cpu
