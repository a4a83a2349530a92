// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/item.h"

#include <algorithm>

namespace plait::cpu {

using device::Run;

void ItemRunner::attend(const Layer& layer, const Run& run, std::int32_t kv_head,
                        std::int32_t count) {
  bool together = layer.may_stream && layer.plan.header->segment_tokens == 0 &&
                  run.num_fused_rows <= layer.kernels->stream_max_rows;
  for (std::int32_t i = 0; together && i < run.num_pieces; ++i) {
    const device::Piece& piece = layer.plan.piece(run.piece_begin + i);
    together =
        !layer.ranged || (piece.full_begin <= piece.kv_begin && piece.kv_end <= piece.full_end);
  }
  const std::int32_t most = together ? kQueryTile / std::max(1, run.num_fused_rows) : 1;
  for (std::int32_t done = 0; done < count;) {
    const std::int32_t heads = std::min(most, count - done);
    if (together) {
      attend_heads(layer, run, kv_head + done, heads);
    } else {
      attend_head(layer, run, kv_head + done);
    }
    for (std::int32_t h = 0; h < heads; ++h) finish_merges(layer, run, kv_head + done + h);
    done += heads;
  }
}

void ItemRunner::attend_head(const Layer& layer, const Run& run, std::int32_t kv_head) {
  for (int first = 0; first < run.num_fused_rows; first += kQueryTile) {
    const int count = std::min(kQueryTile, run.num_fused_rows - first);
    load_rows(layer, run, kv_head, first, count, 0);
    if (run.num_pieces > 0) {
      place_rows(layer, layer.plan.block(layer.plan.piece(run.piece_begin).block));
    }
    folded_any_ = false;
    begin_segment(layer);
    cursor_.start(layer, run, kv_head);
    KeyTile tile;
    std::int32_t segment = -1;
    while (cursor_.next(layer, tile)) {
      if (segment >= 0 && tile.segment != segment) {
        end_segment(layer);
        begin_segment(layer);
      }
      segment = tile.segment;
      process_tile(layer, tile);
    }
    end_segment(layer);
    write_rows(layer, run, first);
  }
}

/// Several heads of a decode-like item, tile by tile together.
void ItemRunner::attend_heads(const Layer& layer, const Run& run, std::int32_t kv_head, int count) {
  const int rows = run.num_fused_rows;
  for (int h = 0; h < count; ++h) load_rows(layer, run, kv_head + h, 0, rows, h * rows);
  std::fill(m_, m_ + kQueryTile, kMinusInfinity);
  std::fill(l_, l_ + kQueryTile, 0.0F);
  std::fill(scratch_.o, scratch_.o + std::ptrdiff_t{count} * rows * layer.pad_vo, 0.0F);
  kv_head_ = kv_head;
  cursor_.start(layer, run, kv_head, KeyCursor::kStreamTile);
  KeyTile tile;
  while (cursor_.next(layer, tile)) stream_tile(layer, tile, count);
  for (int h = 0; h < count; ++h) {
    kv_head_ = kv_head + h;
    base_ = h * rows;
    folded_any_ = false;
    end_segment(layer);
    write_rows(layer, run, 0);
  }
}

void ItemRunner::begin_segment(const Layer& layer) {
  std::fill(m_, m_ + padded_rows_, kMinusInfinity);
  std::fill(l_, l_ + padded_rows_, 0.0F);
  std::fill(scratch_.o, scratch_.o + std::ptrdiff_t{rows_} * layer.pad_vo, 0.0F);
}

}  // namespace plait::cpu
