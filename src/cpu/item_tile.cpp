// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// How a tile of keys and values joins the accumulators.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "cpu/item.h"

namespace plait::cpu {

using device::RowBlock;

// A stream step has as many rows as an item and its scratch for the weights of a block.
static_assert(kQueryTile <= kStreamRows && kStreamBlock <= kKvTile);
static_assert(KeyCursor::kTile <= kKvTile);

/// Keys that every row sees, for `heads` heads from kv_head_ on, whose rows lie one after another.
void ItemRunner::stream_tile(const Layer& layer, const KeyTile& tile, int heads) {
  float scale[kQueryTile];
  const double base = effective_sm_scale(*layer.spec) * std::numbers::log2e;
  for (int h = 0; h < heads; ++h) scale[h] = static_cast<float>(base * layer.k_scale(kv_head_ + h));
  StreamStep step;
  step.q = scratch_.q;
  step.q_ld = layer.pad_qk;
  step.num_heads = heads;
  step.num_rows = rows_;
  step.num_keys = tile.count;
  step.num_ahead = tile.ahead;
  step.k_rows = tile.k_rows;
  step.v_rows = tile.v_rows;
  step.k_head_stride = layer.k.head_stride;
  step.v_head_stride = layer.v.head_stride;
  // On pages of HND a head's keys lie together. Of short pages, read all heads rather than all
  // pages of a head.
  const bool ragged = layer.spec->kv_kind == KvKind::kRagged;
  const std::int64_t token_stride = ragged ? layer.k.page_stride : layer.k.token_stride;
  const int run = ragged ? kStreamBlock : layer.spec->page_size / 16 * 16;
  if (std::abs(layer.k.head_stride) >= std::abs(token_stride) && run > 0) {
    step.head_run = std::min(run, kStreamBlock);
  }
  step.dim_qk = layer.dim_qk;
  step.dim_vo = layer.dim_vo;
  step.scale = scale;
  step.s = scratch_.s;
  step.s_ld = round_up(heads * rows_, layer.kernels->lanes);
  step.o = scratch_.o;
  step.o_ld = layer.pad_vo;
  step.m = m_;
  step.l = l_;
  layer.kernels->stream_step[static_cast<int>(layer.spec->kv_dtype)](step);
}

/// Rope and hooks on the keys of a tile, in place.
void ItemRunner::load_keys(const Layer& layer, const KeyTile& tile) {
  const bool hooked = layer.variant != nullptr && layer.variant->hooks().key != nullptr;
  for (int i = 0; i < tile.count; ++i) {
    float* key = scratch_.k + i * layer.pad_qk;
    if (layer.rope != nullptr) {
      std::int64_t pos = tile.pos[i];
      const RowBlock& block = layer.plan.block(tile.block[i]);
      // Positions known at run time may lie outside the request, where the operand has no entry.
      if (layer.spec->rope.explicit_k_positions && pos >= 0 && pos < block.kv_len) {
        pos = layer.k_rope_positions[block.rope_k_begin + pos];
      }
      layer.rope->rotate(*layer.kernels, pos, key, scratch_.angles);
    }
    if (hooked) {
      // The hook sees dequantised keys, so the scale cannot wait for the logits.
      layer.kernels->scale_row(key, layer.k_scale(kv_head_), layer.dim_qk, key);
      const std::int32_t request = layer.plan.block(tile.block[i]).request;
      layer.variant->hooks().key(key, layer.dim_qk, request, tile.pos[i], kv_head_,
                                 layer.variant->params());
    }
  }
}

void ItemRunner::apply_custom_mask(const Layer& layer, const KeyTile& tile) {
  const auto* bytes = static_cast<const std::uint8_t*>(layer.args->custom_mask.data);
  for (int i = 0; i < tile.count; ++i) {
    const RowBlock& block = layer.plan.block(tile.block[i]);
    if ((block.flags & device::kBlockCustomMask) == 0) continue;
    const std::int64_t column = std::int64_t{tile.pos[i]} - block.mask_pos_base;
    if (column < 0) continue;
    const std::int64_t bit0 =
        static_cast<std::int64_t>((std::uint64_t{block.mask_bit0_hi} << 32) | block.mask_bit0_lo);
    float* s = scratch_.s + i * padded_rows_;
    if (column >= block.mask_row_bits) {
      // A position past kv_len, which only positions known at run time can have: there is no bit.
      std::fill(s, s + rows_, kMinusInfinity);
      continue;
    }
    for (int r = 0; r < rows_; ++r) {
      const std::int64_t bit =
          bit0 + std::int64_t{q_row_[r] - block.row_begin} * block.mask_row_bits + column;
      if (((bytes[bit >> 3] >> (bit & 7)) & 1) == 0) s[r] = kMinusInfinity;
    }
  }
}

/// Everything between the dot products and the softmax that wants natural units, in contract order.
void ItemRunner::shape_logits(const Layer& layer, const KeyTile& tile) {
  const AttentionSpec& spec = *layer.spec;
  TileStep step;
  step.s = scratch_.s;
  step.num_keys = tile.count;
  step.num_rows = padded_rows_;
  step.ld = padded_rows_;
  step.key_pos = tile.pos;
  LogitParams params;
  params.soft_cap = static_cast<float>(spec.logits_soft_cap);
  params.row_pos = pos_;
  double scale = effective_sm_scale(spec);
  const bool key_hook = layer.variant != nullptr && layer.variant->hooks().key != nullptr;
  if (!key_hook) scale *= layer.k_scale(kv_head_);
  params.scale = static_cast<float>(scale);
  layer.kernels->scale_tile(step, params);
  const VariantRows rows{rows_, request_, pos_, qo_len_, kv_len_, qo_head_, kv_head_};
  if (layer.variant != nullptr && layer.variant->hooks().logits != nullptr) {
    layer.variant->hooks().logits(step.s, step.ld, tile.count, tile.pos, rows,
                                  layer.variant->params());
  }
  if (spec.alibi) {
    params.slopes = slopes_;
    layer.kernels->alibi_tile(step, params);
  }
  if (layer.variant != nullptr && layer.variant->hooks().visible != nullptr) {
    layer.variant->hooks().visible(step.s, step.ld, tile.count, tile.pos, rows,
                                   layer.variant->params());
  }
  if (tile.custom_mask) apply_custom_mask(layer, tile);
}

/// o = o * alpha + weights * V.
void ItemRunner::fold_values(const Layer& layer, const KeyTile& tile, const float* values,
                             std::ptrdiff_t ld, bool finite, bool masked) {
  if (finite || !masked) {
    layer.kernels->gemm(rows_, layer.pad_vo, tile.count, scratch_.s, 1, padded_rows_, values, ld,
                        scratch_.o, layer.pad_vo, alpha_);
    return;
  }
  // Some value is NaN or infinite: a row must not touch those that it does not see.
  for (int r = 0; r < rows_; ++r) {
    float* o = scratch_.o + r * layer.pad_vo;
    layer.kernels->scale_row(o, alpha_[r], layer.pad_vo, o);
    const float one = 1.0F;
    for (int i = 0; i < tile.count; ++i) {
      const float* p = scratch_.s + i * padded_rows_ + r;
      if (*p == 0.0F) continue;
      layer.kernels->gemm(1, layer.pad_vo, 1, p, 0, 0, values + i * ld, ld, o, layer.pad_vo, &one);
    }
  }
}

void ItemRunner::process_tile(const Layer& layer, const KeyTile& tile) {
  const AttentionSpec& spec = *layer.spec;
  const bool ranged = layer.ranged && !tile.full;
  if (layer.may_stream && !ranged && rows_ <= layer.kernels->stream_max_rows &&
      layer.plan.header->segment_tokens == 0) {
    stream_tile(layer, tile, 1);
    return;
  }
  if (!transposed_) transpose_queries(layer);
  const auto load = layer.kernels->load_rows[static_cast<int>(spec.kv_dtype)];
  bool finite = load(tile.k_rows, tile.count, layer.dim_qk, scratch_.k, layer.pad_qk);
  const float* values = scratch_.k;
  std::ptrdiff_t ld = layer.pad_qk;
  if (!layer.values_are_keys) {
    finite = load(tile.v_rows, tile.count, layer.dim_vo, scratch_.v, layer.pad_vo);
    values = scratch_.v;
    ld = layer.pad_vo;
  }
  load_keys(layer, tile);
  layer.kernels->gemm(tile.count, padded_rows_, layer.dim_qk, scratch_.k, layer.pad_qk, 1,
                      scratch_.q_t, padded_rows_, scratch_.s, padded_rows_, nullptr);
  TileStep step;
  step.s = scratch_.s;
  step.num_keys = tile.count;
  step.num_rows = padded_rows_;
  step.ld = padded_rows_;
  step.key_pos = tile.pos;
  step.row_lo = ranged ? lo_ : nullptr;
  step.row_hi = ranged ? hi_ : nullptr;
  step.m = m_;
  step.l = l_;
  step.alpha = alpha_;
  if (layer.natural_logits) {
    shape_logits(layer, tile);
    step.scale = static_cast<float>(std::numbers::log2e);
  } else {
    step.scale = static_cast<float>(effective_sm_scale(spec) * layer.k_scale(kv_head_) *
                                    std::numbers::log2e);
  }
  if (layer.softmax) {
    layer.kernels->softmax_tile(step);
  } else {
    std::fill(alpha_, alpha_ + padded_rows_, 1.0F);
    if (layer.variant != nullptr && layer.variant->hooks().weight != nullptr) {
      if (ranged) {
        for (int i = 0; i < tile.count; ++i) {
          for (int r = 0; r < rows_; ++r) {
            if (tile.pos[i] < lo_[r] || tile.pos[i] > hi_[r])
              scratch_.s[i * padded_rows_ + r] = kMinusInfinity;
          }
        }
      }
      const VariantRows rows{rows_, request_, pos_, qo_len_, kv_len_, qo_head_, kv_head_};
      layer.variant->hooks().weight(step.s, step.ld, tile.count, tile.pos, rows,
                                    layer.variant->params());
    } else {
      LogitParams params;
      params.sigmoid_bias = static_cast<float>(spec.sigmoid_bias);
      layer.kernels->sigmoid_tile(step, params);
    }
  }
  const bool hidden = layer.variant != nullptr && layer.variant->hooks().visible != nullptr;
  fold_values(layer, tile, values, ld, finite, ranged || tile.custom_mask || hidden);
}

}  // namespace plait::cpu
