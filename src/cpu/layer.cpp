// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/layer.h"

#include <algorithm>

namespace plait::cpu {
namespace {

CacheView cache_view(const AttentionSpec& spec, const Tensor& t) {
  const std::int64_t size = size_of(t.dtype);
  CacheView view;
  view.data = static_cast<const char*>(t.data);
  view.page_stride = t.strides[0] * size;
  if (spec.kv_kind == KvKind::kRagged) {
    view.head_stride = t.strides[1] * size;
    return view;
  }
  const bool nhd = spec.layout == KvLayout::kNhd;
  view.token_stride = t.strides[nhd ? 1 : 2] * size;
  view.head_stride = t.strides[nhd ? 2 : 1] * size;
  return view;
}

ListView list_view(const Tensor& t) {
  return {static_cast<const std::int32_t*>(t.data), t.rank > 0 ? t.strides[0] : 1};
}

}  // namespace

std::int32_t GroupView::request_of(std::int32_t q_row) const noexcept {
  const std::int32_t* indptr = q_indptr();
  const std::int32_t* end = indptr + header->num_requests + 1;
  return static_cast<std::int32_t>(std::upper_bound(indptr, end, q_row) - indptr) - 1;
}

Layer bind_layer(const AttentionSpec& spec, const RunArgs& args, const std::int32_t* plan_words,
                 const KernelTable& kernels) {
  Layer layer;
  layer.spec = &spec;
  layer.args = &args;
  layer.kernels = &kernels;
  layer.plan = GroupView(plan_words, args.group);
  layer.group_size = spec.group_size();
  layer.dim_qk = spec.head_dim_qk;
  layer.dim_vo = spec.head_dim_vo;
  layer.pad_qk = round_up(spec.head_dim_qk, kernels.lanes);
  layer.pad_vo = round_up(spec.head_dim_vo, kernels.lanes);
  layer.softmax = spec.reduction == Reduction::kSoftmax;
  layer.ranged = spec.mask == MaskKind::kCausal || spec.window_left >= 0;
  layer.k = cache_view(spec, args.k);
  layer.v = cache_view(spec, args.v);
  layer.values_are_keys = layer.k.data == layer.v.data && spec.head_dim_vo <= spec.head_dim_qk &&
                          layer.k.page_stride == layer.v.page_stride &&
                          layer.k.token_stride == layer.v.token_stride &&
                          layer.k.head_stride == layer.v.head_stride &&
                          spec.rope.kind == RopeKind::kNone && spec.variant.source.empty();
  for (std::size_t view = 0; view < args.page_ids.size(); ++view) {
    layer.page_ids[view] = list_view(args.page_ids[view]);
  }
  for (std::size_t view = 0; view < args.positions.size(); ++view) {
    layer.positions[view] = list_view(args.positions[view]);
  }
  layer.q_rope_positions = list_view(args.q_rope_positions);
  layer.k_rope_positions = list_view(args.k_rope_positions);
  layer.natural_logits = spec.logits_soft_cap > 0.0 || spec.alibi || !layer.softmax ||
                         spec.mask == MaskKind::kCustom || !spec.variant.source.empty();
  layer.may_stream = !layer.natural_logits && spec.rope.kind == RopeKind::kNone;
  return layer;
}

}  // namespace plait::cpu
