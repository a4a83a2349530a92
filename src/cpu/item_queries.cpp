// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The query rows of an item: loaded, placed, rotated.
#include <algorithm>
#include <limits>

#include "cpu/item.h"

namespace plait::cpu {

using device::RowBlock;
using device::Run;

namespace {

constexpr std::int32_t kFirst = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kLast = std::numeric_limits<std::int32_t>::max();

}  // namespace

void ItemRunner::load_rows(const Layer& layer, const Run& run, std::int32_t kv_head, int first,
                           int count, int slot) {
  const int g = layer.group_size;
  kv_head_ = kv_head;
  rows_ = count;
  base_ = slot;
  padded_rows_ = round_up(count, layer.kernels->lanes);
  transposed_ = false;
  const Tensor& q = layer.args->q;
  const std::int64_t size = size_of(q.dtype);
  const void* sources[kQueryTile];
  for (int r = 0; r < count; ++r) {
    const std::int32_t fused = run.fused_row_begin + first + r;
    q_row_[slot + r] = fused / g;
    qo_head_[slot + r] = kv_head * g + fused % g;
    sources[r] = static_cast<const char*>(q.data) +
                 (q_row_[slot + r] * q.strides[0] + qo_head_[slot + r] * q.strides[1]) * size;
  }
  layer.kernels->load_rows[static_cast<int>(q.dtype)](
      sources, count, layer.dim_qk, scratch_.q + slot * layer.pad_qk, layer.pad_qk);
}

/// What depends on the positions of the rows: visible ranges, rope and hooks on q.
void ItemRunner::place_rows(const Layer& layer, const RowBlock& block) {
  const AttentionSpec& spec = *layer.spec;
  const std::int32_t* row_pos = layer.plan.at<std::int32_t>(layer.plan.header->row_pos_offset);
  const bool spans = (block.flags & device::kBlockSpansRequests) != 0;
  for (int r = 0; r < rows_; ++r) {
    const std::int32_t pos =
        spans ? row_pos[q_row_[r]] : block.pos0 + (q_row_[r] - block.row_begin);
    pos_[r] = pos;
    lo_[r] = spec.window_left >= 0 ? static_cast<std::int32_t>(std::max<std::int64_t>(
                                         std::int64_t{pos} - spec.window_left, kFirst))
                                   : kFirst;
    hi_[r] = spec.mask == MaskKind::kCausal ? pos : kLast;
  }
  for (int r = rows_; r < padded_rows_; ++r) {
    pos_[r] = 0;
    lo_[r] = kFirst;
    hi_[r] = kLast;
  }
  if (spec.alibi) {
    const Tensor& slopes = layer.args->alibi_slopes;
    for (int r = 0; r < padded_rows_; ++r) {
      slopes_[r] = r < rows_
                       ? static_cast<const float*>(slopes.data)[qo_head_[r] * slopes.strides[0]]
                       : 0.0F;
    }
  }
  if (layer.rope != nullptr) {
    for (int r = 0; r < rows_; ++r) {
      const std::int64_t pos =
          spec.rope.explicit_q_positions ? layer.q_rope_positions[q_row_[r]] : pos_[r];
      layer.rope->rotate(*layer.kernels, pos, scratch_.q + r * layer.pad_qk, scratch_.angles);
    }
  }
  if (layer.variant != nullptr) {
    const std::int32_t* indptr = layer.plan.q_indptr();
    for (int r = 0; r < rows_; ++r) {
      request_[r] = layer.plan.request_of(q_row_[r]);
      qo_len_[r] = indptr[request_[r] + 1] - indptr[request_[r]];
      kv_len_[r] = layer.plan.kv_len(request_[r]);
    }
    if (layer.variant->hooks().query != nullptr) {
      for (int r = 0; r < rows_; ++r) {
        layer.variant->hooks().query(scratch_.q + r * layer.pad_qk, layer.dim_qk, request_[r],
                                     pos_[r], qo_head_[r], layer.variant->params());
      }
    }
  }
}

void ItemRunner::transpose_queries(const Layer& layer) {
  for (int r = 0; r < padded_rows_; ++r) {
    const float* q = scratch_.q + r * layer.pad_qk;
    for (int d = 0; d < layer.dim_qk; ++d)
      scratch_.q_t[d * padded_rows_ + r] = r < rows_ ? q[d] : 0.0F;
  }
  transposed_ = true;
}

}  // namespace plait::cpu
