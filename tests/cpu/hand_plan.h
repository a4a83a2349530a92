// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Plans written by hand, so that the kernels are tested apart from the planner: one view of paged
// requests, cut into query tiles and KV chunks as asked.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/device/plan_layout.h"
#include "plait/spec.h"
#include "plan/planner.h"

namespace plait::test {

struct HandRequest {
  std::int32_t qo_len = 1;
  std::int32_t kv_len = 1;
};

struct HandOptions {
  std::int32_t q_tile = 64;         // fused rows per item
  std::int32_t kv_chunk = 0;        // 0: one chunk, written through
  std::int32_t segment_tokens = 0;  // canonical segments
  bool item_per_segment = false;    // else one item folds all segments
  std::int32_t num_workers = 3;
  std::int32_t cost = 1 << 20;  // per item, as predicted
  bool mark_full = true;        // state which keys every row sees
  bool split_runs = false;      // heads of one run go to different workers
};

class HandPlan {
 public:
  HandPlan(const AttentionSpec& spec, const std::vector<HandRequest>& requests,
           const HandOptions& options)
      : spec_(spec), requests_(requests), options_(options) {
    build();
  }

  Plan plan() const { return {words_, {}}; }
  PlanBounds bounds() const {
    return {static_cast<std::int64_t>(words_.size()),
            state_rows_,
            counters_,
            0,
            {options_.num_workers}};
  }

 private:
  template <class T>
  std::int32_t append(const std::vector<T>& items) {
    const auto offset = static_cast<std::int32_t>(words_.size());
    const std::size_t words = items.size() * sizeof(T) / 4;
    words_.resize(words_.size() + words);
    if (words > 0) std::memcpy(words_.data() + offset, items.data(), words * 4);
    return offset;
  }

  bool visible(std::int32_t pos, std::int32_t key) const {
    if (spec_.mask == MaskKind::kCausal && key > pos) return false;
    return spec_.window_left < 0 || key >= pos - spec_.window_left;
  }

  void add_items(std::int32_t block_index, const device::RowBlock& block) {
    const std::int32_t g = spec_.group_size();
    const std::int32_t rows = block.num_rows * g;
    for (std::int32_t first = 0; first < rows; first += options_.q_tile) {
      const std::int32_t count = std::min(options_.q_tile, rows - first);
      const std::int32_t fused = block.row_begin * g + first;
      const std::int32_t first_pos = block.pos0 + first / g;
      const std::int32_t last_pos = block.pos0 + (first + count - 1) / g;
      std::int32_t chunk = std::max(1, block.num_slots);
      if (options_.kv_chunk > 0) chunk = options_.kv_chunk;
      if (options_.item_per_segment) chunk = options_.segment_tokens;
      const bool split = options_.kv_chunk > 0 || options_.item_per_segment;
      std::vector<device::StateRef> refs;
      const auto merge_index = static_cast<std::int32_t>(merges_.size());
      for (std::int32_t begin = 0; begin == 0 || begin < block.num_slots; begin += chunk) {
        device::Piece piece{block_index, begin, std::min(begin + chunk, block.num_slots), 0, 0};
        if (options_.mark_full && spec_.mask != MaskKind::kCustom) {
          piece.full_begin = piece.kv_end;
          for (std::int32_t key = piece.kv_begin; key < piece.kv_end; ++key) {
            if (visible(first_pos, key) && visible(last_pos, key)) {
              piece.full_begin = std::min(piece.full_begin, key);
              piece.full_end = key + 1;
            }
          }
          if (piece.full_end == 0) piece.full_begin = 0;
        }
        device::Run run{};
        run.fused_row_begin = fused;
        run.num_fused_rows = count;
        run.head_count = spec_.num_kv_heads;
        run.piece_begin = static_cast<std::int32_t>(pieces_.size());
        run.num_pieces = block.num_slots > 0 ? 1 : 0;
        run.state_begin = -1;
        run.cost = options_.cost;
        if (split) {
          run.state_begin = static_cast<std::int32_t>(state_rows_);
          state_rows_ += std::int64_t{count} * spec_.num_kv_heads;
          run.merge_begin = merge_index;
          run.num_merges = 1;
          refs.push_back({run.state_begin, count});
        }
        if (run.num_pieces > 0) pieces_.push_back(piece);
        runs_.push_back(run);
      }
      if (split) {
        device::Merge merge{};
        merge.fused_row_begin = fused;
        merge.num_fused_rows = count;
        merge.head_count = spec_.num_kv_heads;
        merge.ref_begin = static_cast<std::int32_t>(refs_.size());
        merge.num_refs = static_cast<std::int32_t>(refs.size());
        merge.counter_begin = static_cast<std::int32_t>(counters_);
        counters_ += spec_.num_kv_heads;
        refs_.insert(refs_.end(), refs.begin(), refs.end());
        merges_.push_back(merge);
      }
    }
  }

  void build() {
    std::vector<device::RowBlock> blocks;
    std::vector<std::int32_t> kv_lens;
    std::vector<std::int32_t> indptr{0};
    std::int32_t page = 0;
    std::int64_t mask_bit = 0;
    std::int32_t rope_k = 0;
    for (const HandRequest& request : requests_) {
      device::RowBlock block{};
      block.row_begin = indptr.back();
      block.num_rows = request.qo_len;
      block.page_begin = page;
      block.num_slots = request.kv_len;
      block.pos0 = request.kv_len - request.qo_len;
      block.request = static_cast<std::int32_t>(kv_lens.size());
      block.kv_len = request.kv_len;
      block.rope_k_begin = rope_k;
      rope_k += request.kv_len;
      if (spec_.mask == MaskKind::kCustom) {
        block.flags |= device::kBlockCustomMask;
        block.mask_bit0_lo = static_cast<std::uint32_t>(mask_bit);
        block.mask_row_bits = request.kv_len;
        mask_bit += (std::int64_t{request.qo_len} * request.kv_len + 7) / 8 * 8;
      }
      if (spec_.kv_kind == KvKind::kRagged) {
        block.flags |= device::kBlockRagged;
        page += request.kv_len;
      } else {
        page += (request.kv_len + spec_.page_size - 1) / spec_.page_size;
      }
      indptr.push_back(indptr.back() + request.qo_len);
      kv_lens.push_back(request.kv_len);
      add_items(static_cast<std::int32_t>(blocks.size()), block);
      blocks.push_back(block);
    }
    device::PlanHeader header{};
    header.magic = device::kPlanMagic;
    header.version = device::kPlanVersion;
    header.num_groups = 1;
    header.spec_fingerprint = plan_fingerprint(std::span(&spec_, 1));
    append(std::vector<device::PlanHeader>{header});
    device::GroupHeader group{};
    words_.resize(device::group_header_offset(0));
    const std::int32_t group_offset = append(std::vector<device::GroupHeader>{group});
    group.num_requests = static_cast<std::int32_t>(kv_lens.size());
    group.total_q = indptr.back();
    group.num_classes = 1;
    group.segment_tokens = options_.segment_tokens;
    group.block_offset = append(blocks);
    group.num_blocks = static_cast<std::int32_t>(blocks.size());
    group.piece_offset = append(pieces_);
    group.num_pieces = static_cast<std::int32_t>(pieces_.size());
    group.run_offset = append(runs_);
    group.num_runs = static_cast<std::int32_t>(runs_.size());
    group.merge_offset = append(merges_);
    group.num_merges = static_cast<std::int32_t>(merges_.size());
    group.ref_offset = append(refs_);
    group.num_refs = static_cast<std::int32_t>(refs_.size());
    group.row_pos_offset = -1;
    group.num_state_rows = static_cast<std::int32_t>(state_rows_);
    group.num_counters = static_cast<std::int32_t>(counters_);
    group.kv_len_offset = append(kv_lens);
    group.q_indptr_offset = append(indptr);

    std::vector<std::int32_t> worker_indptr{0};
    std::vector<device::Slice> slices;
    for (std::int32_t w = 0; w < options_.num_workers; ++w) {
      for (std::int32_t r = 0; r < group.num_runs; ++r) {
        // Runs are split between workers too: all heads of one, or every second head.
        if (!options_.split_runs) {
          if (r % options_.num_workers == w) slices.push_back({r, 0, spec_.num_kv_heads});
          continue;
        }
        for (std::int32_t h = 0; h < spec_.num_kv_heads; ++h) {
          if ((r + h) % options_.num_workers == w) slices.push_back({r, h, 1});
        }
      }
      worker_indptr.push_back(static_cast<std::int32_t>(slices.size()));
    }
    device::ClassHeader& cls = group.classes[0];
    cls.q_tile = options_.q_tile;
    cls.kv_tile = 64;
    cls.num_workers = options_.num_workers;
    cls.worker_offset = append(worker_indptr);
    cls.slice_offset = append(slices);
    cls.num_slices = static_cast<std::int32_t>(slices.size());

    header.total_words = static_cast<std::int32_t>(words_.size());
    std::memcpy(words_.data(), &header, sizeof header);
    std::memcpy(words_.data() + group_offset, &group, sizeof group);
  }

  AttentionSpec spec_;
  std::vector<HandRequest> requests_;
  HandOptions options_;
  std::vector<std::int32_t> words_;
  std::vector<device::Piece> pieces_;
  std::vector<device::Run> runs_;
  std::vector<device::Merge> merges_;
  std::vector<device::StateRef> refs_;
  std::int64_t state_rows_ = 0;
  std::int64_t counters_ = 0;
};

}  // namespace plait::test
