// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/operands.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "check/run_problem.h"
#include "core/bsr.h"
#include "plait/error.h"

namespace plait::check {
namespace {

using oracle::Ints;
using oracle::Level;
using oracle::Problem;
using oracle::Source;

std::size_t z(std::int64_t value) { return static_cast<std::size_t>(value); }

std::vector<std::int32_t> narrow(const Ints& values) {
  return {values.begin(), values.end()};  // the parser bounds every index by 2^31 - 1
}

bool has_block_masks(const Problem& problem) {
  return problem.source == Source::kBsr && !problem.bsr.masks.empty();
}

MaskKind mask_of(const Problem& problem) {
  switch (problem.mask) {
    case oracle::Mask::kNone: return MaskKind::kNone;
    case oracle::Mask::kCausal: return MaskKind::kCausal;
    case oracle::Mask::kCustom: break;
  }
  return MaskKind::kCustom;
}

RopeSpec rope_of(const Problem& problem) {
  RopeSpec rope;
  switch (problem.rope.kind) {
    case oracle::Rope::kNone: return rope;
    case oracle::Rope::kHalf: rope.kind = RopeKind::kHalf; break;
    case oracle::Rope::kInterleaved: rope.kind = RopeKind::kInterleaved; break;
  }
  rope.theta = problem.rope.theta;
  rope.rotary_dim = static_cast<std::int32_t>(problem.rope.rotary_dim);
  switch (problem.rope.scaling) {
    case oracle::RopeScaling::kNone: break;
    case oracle::RopeScaling::kLinear:
      rope.scaling = RopeScalingKind::kLinear;
      rope.factor = problem.rope.factor;
      break;
    case oracle::RopeScaling::kLlama31:
      rope.scaling = RopeScalingKind::kLlama31;
      rope.factor = problem.rope.factor;
      rope.low_freq_factor = problem.rope.low_freq_factor;
      rope.high_freq_factor = problem.rope.high_freq_factor;
      rope.original_max_position = problem.rope.original_max_position;
      break;
  }
  rope.explicit_q_positions = !problem.rope.q_positions.empty();
  rope.explicit_k_positions = !problem.rope.k_positions.empty();
  return rope;
}

// Requests that share keys may give them different rope positions. A shared row block rotates each
// key once, so such a problem runs with every request reading the prefix by itself.
bool sharers_disagree(const Problem& problem) {
  if (problem.source != Source::kCascade || problem.rope.k_positions.empty()) return false;
  for (std::int64_t r = 0; r + 1 < problem.num_requests(); ++r) {
    std::int64_t shared = 0;  // leading keys that both requests read
    for (std::size_t n = 0; n + 1 < problem.levels.size(); ++n) {
      const Level& level = problem.levels[n];
      const std::int64_t block = oracle::block_of_request(problem, level, r);
      if (block < 0 || block != oracle::block_of_request(problem, level, r + 1)) break;
      shared += oracle::listed_tokens(problem, level, block);
    }
    const Ints& a = problem.rope.k_positions[z(r)];
    const Ints& b = problem.rope.k_positions[z(r + 1)];
    if (!std::equal(a.begin(), a.begin() + shared, b.begin(), b.begin() + shared)) return true;
  }
  return false;
}

// The same keys with one row block per request.
Level unshared(const Problem& problem, const Level& level) {
  Level out;
  out.qo_indptr = problem.qo_indptr;
  out.indptr = {0};
  for (std::int64_t r = 0; r < problem.num_requests(); ++r) {
    const std::int64_t block = oracle::block_of_request(problem, level, r);
    if (block >= 0) {
      out.indices.insert(out.indices.end(), level.indices.begin() + level.indptr[z(block)],
                         level.indices.begin() + level.indptr[z(block + 1)]);
    }
    out.indptr.push_back(static_cast<std::int64_t>(out.indices.size()));
    out.last_page_len.push_back(block >= 0 ? level.last_page_len[z(block)] : 0);
  }
  return out;
}

Ints flattened(const std::vector<Ints>& lists) {
  Ints out;
  for (const Ints& list : lists) out.insert(out.end(), list.begin(), list.end());
  return out;
}

}  // namespace

AttentionSpec spec_of(const Problem& problem) {
  AttentionSpec spec;
  spec.num_qo_heads = static_cast<std::int32_t>(problem.num_qo_heads);
  spec.num_kv_heads = static_cast<std::int32_t>(problem.num_kv_heads);
  spec.head_dim_qk = static_cast<std::int32_t>(problem.head_dim_qk);
  spec.head_dim_vo = static_cast<std::int32_t>(problem.head_dim_vo);
  spec.q_dtype = problem.q_dtype;
  spec.kv_dtype = problem.kv_dtype;
  spec.o_dtype = problem.o_dtype;
  spec.kv_kind = problem.source == Source::kRagged ? KvKind::kRagged : KvKind::kPaged;
  spec.layout = problem.hnd ? KvLayout::kHnd : KvLayout::kNhd;
  spec.page_size = problem.source == Source::kRagged ? 1
                   : problem.source == Source::kBsr
                       ? bsr_page_size(narrow(problem.bsr.col_sizes),
                                       static_cast<std::int32_t>(problem.kv_chunk))
                       : static_cast<std::int32_t>(problem.page_size);
  spec.mask = has_block_masks(problem) ? MaskKind::kCustom : mask_of(problem);
  spec.window_left = static_cast<std::int32_t>(problem.window_left);
  spec.sm_scale = problem.sm_scale;
  spec.logits_soft_cap = problem.logits_soft_cap;
  spec.alibi = !problem.alibi_slopes.empty();
  spec.sink = !problem.sink.empty();
  spec.k_scale_per_head = problem.k_scale.size() > 1;
  spec.v_scale_per_head = problem.v_scale.size() > 1;
  spec.rope = rope_of(problem);
  spec.reduction = problem.sum_sigmoid ? Reduction::kSum : Reduction::kSoftmax;
  spec.sigmoid_bias = problem.sigmoid_bias;
  spec.variant.name = problem.variant.name;
  spec.variant.source = problem.variant.source;
  for (const auto& param : problem.variant.params) {
    VariantParam out;
    out.name = param.name;
    out.is_array = param.is_array;
    for (double value : param.values) out.values.push_back(static_cast<float>(value));
    spec.variant.params.push_back(std::move(out));
  }
  return spec;
}

Operands::Operands(const Problem& problem)
    : problem_(problem), spec_(spec_of(problem)), k_(problem.k), v_(problem.v) {
  if (problem.source == Source::kBsr) {
    build_block_sparse();
  } else {
    build_paged();
  }
  if (arrays_.views.size() > static_cast<std::size_t>(kMaxViews)) {
    throw Error(ErrorCode::kUnsupported, "kv.levels",
                std::to_string(arrays_.views.size()) + " levels",
                "at most " + std::to_string(kMaxViews));
  }
  batch_ = arrays_.get();
}

void Operands::build_paged() {
  arrays_.qo_indptr = narrow(problem_.qo_indptr);
  mask_ = problem_.mask_bytes;
  if (problem_.source == Source::kRagged) {
    OwnedView& view = arrays_.views.emplace_back();
    view.row_indptr = arrays_.qo_indptr;
    view.page_indptr = narrow(problem_.kv_indptr);
    return;
  }
  const bool expand = sharers_disagree(problem_);
  for (const Level& shared : problem_.levels) {
    const Level level = expand ? unshared(problem_, shared) : shared;
    OwnedView& view = arrays_.views.emplace_back();
    view.row_indptr = narrow(level.qo_indptr);
    view.page_indptr = narrow(level.indptr);
    view.last_page_len = narrow(level.last_page_len);
    view.positions = narrow(level.positions);
    view.per_kv_head = problem_.per_kv_head;
    page_ids_.push_back(level.indices);
  }
}

void Operands::build_block_sparse() {
  const oracle::BlockSparse& bsr = problem_.bsr;
  BsrPattern pattern;
  pattern.block_rows = narrow(bsr.row_sizes);
  pattern.block_cols = narrow(bsr.col_sizes);
  pattern.indptr = narrow(bsr.indptr);
  pattern.indices = narrow(bsr.indices);
  for (const std::vector<std::uint8_t>& block : bsr.masks) {
    pattern.block_mask.insert(pattern.block_mask.end(), block.begin(), block.end());
  }
  LoweredBsr lowered = lower_bsr(pattern, mask_of(problem_), problem_.mask_bytes,
                                 static_cast<std::int32_t>(problem_.kv_chunk));
  arrays_ = std::move(lowered.batch);
  mask_ = std::move(lowered.custom_mask);
  page_ids_.emplace_back(lowered.page_ids.begin(), lowered.page_ids.end());
  const std::int64_t page = lowered.page_size;
  for (oracle::HostTensor* tensor : {&k_, &v_}) {
    tensor->shape = {tensor->shape[0] / page, page, tensor->shape[1], tensor->shape[2]};
    tensor->strides = {tensor->strides[0] * page, tensor->strides[0], tensor->strides[1],
                       tensor->strides[2]};
  }
}

Capacity Operands::capacity() const {
  Capacity out;
  out.max_requests = std::max<std::int64_t>(problem_.num_requests(), 1);
  out.max_query_rows = std::max<std::int64_t>(problem_.total_q(), 1);
  out.max_kv_tokens = 1;
  for (std::int64_t r = 0; r < problem_.num_requests(); ++r) {
    out.max_kv_tokens = std::max(out.max_kv_tokens, oracle::kv_len(problem_, r));
  }
  for (const OwnedView& view : arrays_.views) {
    const std::int64_t blocks = static_cast<std::int64_t>(view.row_indptr.size()) - 1;
    out.max_row_blocks += blocks * (view.per_kv_head ? problem_.num_kv_heads : 1);
  }
  out.max_row_blocks = std::max<std::int64_t>(out.max_row_blocks, 1);
  out.max_views = static_cast<std::int32_t>(arrays_.views.size());
  out.min_kv_chunk = static_cast<std::int32_t>(problem_.kv_chunk);
  out.allow_split = problem_.policy != oracle::PolicyName::kUnsplit || arrays_.views.size() > 1;
  out.allow_batch_invariant = problem_.policy == oracle::PolicyName::kBatchInvariant;
  return out;
}

Policy Operands::policy() const {
  Policy out;
  switch (problem_.policy) {
    case oracle::PolicyName::kThroughput: out.kind = PolicyKind::kThroughput; break;
    case oracle::PolicyName::kBatchInvariant: out.kind = PolicyKind::kBatchInvariant; break;
    case oracle::PolicyName::kFixedChunk: out.kind = PolicyKind::kFixedChunk; break;
    case oracle::PolicyName::kUnsplit: out.kind = PolicyKind::kUnsplit; break;
  }
  out.kv_chunk = static_cast<std::int32_t>(problem_.kv_chunk);
  out.num_workers = static_cast<std::int32_t>(problem_.num_workers);
  return out;
}

RunArgs Operands::place(OperandMemory& memory) {
  RunArgs args;
  args.q = memory.place(problem_.q);
  args.k = memory.place(k_);
  args.v = memory.place(v_);
  bool any_positions = false;
  for (const OwnedView& view : arrays_.views) {
    any_positions = any_positions || !view.positions.empty();
  }
  placed_ids_.clear();
  placed_positions_.clear();
  for (std::size_t v = 0; v < page_ids_.size(); ++v) {
    placed_ids_.push_back(memory.place_i32(page_ids_[v]));
    if (!any_positions) continue;
    const std::vector<std::int32_t>& positions = arrays_.views[v].positions;
    const Ints wide(positions.begin(), positions.end());
    placed_positions_.push_back(positions.empty() ? Tensor{} : memory.place_i32(wide));
  }
  args.page_ids = placed_ids_;
  args.positions = placed_positions_;
  if (spec_.mask == MaskKind::kCustom) args.custom_mask = memory.place_u8(mask_);
  if (spec_.alibi) args.alibi_slopes = memory.place_f32(problem_.alibi_slopes);
  if (spec_.sink) args.sink = memory.place_f32(problem_.sink);
  if (spec_.k_scale_per_head) {
    args.k_scales = memory.place_f32(problem_.k_scale);
  } else {
    args.k_scale = static_cast<float>(problem_.k_scale.front());
  }
  if (spec_.v_scale_per_head) {
    args.v_scales = memory.place_f32(problem_.v_scale);
  } else {
    args.v_scale = static_cast<float>(problem_.v_scale.front());
  }
  if (spec_.rope.explicit_q_positions) {
    args.q_rope_positions = memory.place_i32(flattened(problem_.rope.q_positions));
  }
  if (spec_.rope.explicit_k_positions) {
    args.k_rope_positions = memory.place_i32(flattened(problem_.rope.k_positions));
  }
  const std::int64_t o_shape[] = {problem_.total_q(), problem_.num_qo_heads, problem_.head_dim_vo};
  args.o = memory.output(problem_.output_dtype(), o_shape);
  if (problem_.wants_lse()) {
    const std::int64_t lse_shape[] = {problem_.total_q(), problem_.num_qo_heads};
    args.lse = memory.output(DType::kF32, lse_shape);
  }
  args.state = problem_.state;
  return args;
}

}  // namespace plait::check
