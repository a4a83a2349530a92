// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Every operand of a run, checked before anything is launched. An operand that the spec does not
// ask for is refused as well: accepted and ignored must not exist.
#include <cmath>
#include <string>

#include "engine/plan_facts.h"
#include "engine/shared_memory.h"
#include "engine/tensor_checks.h"

namespace plait::detail {
namespace {

void check_cache(const TensorChecker& check, const AttentionSpec& spec, const PlanFacts& facts,
                 const char* name, const Tensor& t, std::int32_t dim) {
  check.defined(name, t, "the keys or values of this layer");
  check.on_device(name, t);
  check.dtype(name, t, spec.kv_dtype);
  if (spec.kv_kind == KvKind::kRagged) {
    check.shape(name, t, {-1, spec.num_kv_heads, dim}, "(total_kv, num_kv_heads, head_dim)");
    if (t.shape[0] < facts.num_pages[0]) {
      refuse(std::string(name) + ".shape", shape_text(t),
             "at least " + std::to_string(facts.num_pages[0]) + " tokens, which the plan reads");
    }
  } else if (spec.layout == KvLayout::kNhd) {
    check.shape(name, t, {-1, spec.page_size, spec.num_kv_heads, dim},
                "(num_pages, page_size, num_kv_heads, head_dim)");
  } else {
    check.shape(name, t, {-1, spec.num_kv_heads, spec.page_size, dim},
                "(num_pages, num_kv_heads, page_size, head_dim)");
  }
  check.unit_stride(name, t);
}

void check_tables(const TensorChecker& check, const AttentionSpec& spec, const PlanFacts& facts,
                  const RunArgs& args) {
  const std::size_t expected =
      spec.kv_kind == KvKind::kRagged ? 0 : static_cast<std::size_t>(facts.num_views);
  if (args.page_ids.size() != expected) {
    refuse("page_ids", std::to_string(args.page_ids.size()) + " tensors",
           std::to_string(expected) + ", one per view of the plan");
  }
  // A list without pages needs no tensor, but what is given is one.
  const auto check_list = [&](const std::string& name, const Tensor& list, std::size_t v) {
    if (facts.num_pages[v] == 0 && !list.defined()) return;
    check.vector(name.c_str(), list, DType::kI32, facts.num_pages[v], false);
  };
  bool any_positions = false;
  for (std::size_t v = 0; v < static_cast<std::size_t>(facts.num_views); ++v) {
    any_positions = any_positions || facts.has_positions[v];
    if (v < expected) check_list("page_ids[" + std::to_string(v) + "]", args.page_ids[v], v);
  }
  if (!any_positions) {
    if (!args.positions.empty())
      refuse("positions", std::to_string(args.positions.size()) + " tensors",
             "none, since no view of the plan has positions");
    return;
  }
  if (args.positions.size() != static_cast<std::size_t>(facts.num_views)) {
    refuse("positions", std::to_string(args.positions.size()) + " tensors",
           std::to_string(facts.num_views) + ", one per view of the plan");
  }
  for (std::size_t v = 0; v < args.positions.size(); ++v) {
    const std::string name = "positions[" + std::to_string(v) + "]";
    if (facts.has_positions[v]) {
      check_list(name, args.positions[v], v);
    } else if (args.positions[v].defined()) {
      refuse(name, "a tensor", "nothing, since this view of the plan has no positions");
    }
  }
}

void check_scale(const char* name, float scalar, bool per_head, const TensorChecker& check,
                 const char* per_head_name, const Tensor& scales, std::int64_t heads) {
  if (!std::isfinite(scalar)) refuse(name, std::to_string(scalar), "a finite number");
  check.optional_vector(per_head_name, name, per_head, scales, DType::kF32, heads);
  if (per_head && scalar != 1.0F) {
    refuse(name, std::to_string(scalar), std::string("1, since ") + per_head_name + " is given");
  }
}

// Those on a GPU are not read here.
void check_slopes(const AttentionSpec& spec, const Tensor& slopes) {
  const auto* values = static_cast<const float*>(slopes.data);
  for (std::int32_t h = 0; h < spec.num_qo_heads; ++h) {
    if (std::isfinite(values[h])) continue;
    refuse("alibi_slopes[" + std::to_string(h) + "]", std::to_string(values[h]), "a finite number");
  }
}

void check_outputs(const TensorChecker& check, const AttentionSpec& spec, const PlanFacts& facts,
                   const RunArgs& args) {
  check.defined("o", args.o, "an output tensor");
  check.on_device("o", args.o);
  check.dtype("o", args.o, args.state ? DType::kF32 : spec.o_dtype);
  check.shape("o", args.o, {facts.total_q, spec.num_qo_heads, spec.head_dim_vo},
              "(total_q, num_qo_heads, head_dim_vo)");
  check.unit_stride("o", args.o);
  const bool has_lse = spec.reduction == Reduction::kSoftmax;
  if (args.lse.defined()) {
    if (!has_lse) refuse("lse", "a tensor", "nothing: a sum reduction has no lse");
    check.on_device("lse", args.lse);
    check.dtype("lse", args.lse, DType::kF32);
    check.shape("lse", args.lse, {facts.total_q, spec.num_qo_heads}, "(total_q, num_qo_heads)");
  } else if (args.state && has_lse) {
    refuse("lse", "nothing", "a tensor: a mergeable state is (o, lse)");
  }
}

/// What is read may share memory as it likes; K and V often do.
void check_written(const char* name, const Tensor& written, const RunArgs& args) {
  const WrittenOperand memory(name, written);
  memory.apart_from("q", args.q);
  memory.apart_from("k", args.k);
  memory.apart_from("v", args.v);
  for (std::size_t v = 0; v < args.page_ids.size(); ++v) {
    memory.apart_from("page_ids", args.page_ids[v], static_cast<int>(v));
  }
  for (std::size_t v = 0; v < args.positions.size(); ++v) {
    memory.apart_from("positions", args.positions[v], static_cast<int>(v));
  }
  memory.apart_from("custom_mask", args.custom_mask);
  memory.apart_from("alibi_slopes", args.alibi_slopes);
  memory.apart_from("sink", args.sink);
  memory.apart_from("q_rope_positions", args.q_rope_positions);
  memory.apart_from("k_rope_positions", args.k_rope_positions);
  memory.apart_from("k_scales", args.k_scales);
  memory.apart_from("v_scales", args.v_scales);
}

}  // namespace

void validate_run(const AttentionSpec& spec, const PlanFacts& facts, const RunArgs& args,
                  Device device) {
  const TensorChecker check(device);
  check.defined("q", args.q, "the queries of this layer");
  check.on_device("q", args.q);
  check.dtype("q", args.q, spec.q_dtype);
  check.shape("q", args.q, {facts.total_q, spec.num_qo_heads, spec.head_dim_qk},
              "(total_q, num_qo_heads, head_dim_qk)");
  check.unit_stride("q", args.q);
  check_cache(check, spec, facts, "k", args.k, spec.head_dim_qk);
  check_cache(check, spec, facts, "v", args.v, spec.head_dim_vo);
  if (args.k.shape[0] != args.v.shape[0]) {
    refuse("v.shape", shape_text(args.v),
           "the first extent of k, " + std::to_string(args.k.shape[0]));
  }
  check_tables(check, spec, facts, args);
  check.optional_vector("custom_mask", "mask = custom", spec.mask == MaskKind::kCustom,
                        args.custom_mask, DType::kU8, facts.mask_bytes);
  check.optional_vector("alibi_slopes", "alibi", spec.alibi, args.alibi_slopes, DType::kF32,
                        spec.num_qo_heads);
  if (spec.alibi && device.kind == DeviceKind::kCpu) check_slopes(spec, args.alibi_slopes);
  check.optional_vector("sink", "sink", spec.sink, args.sink, DType::kF32, spec.num_qo_heads);
  check.optional_vector("q_rope_positions", "rope.explicit_q_positions",
                        spec.rope.explicit_q_positions, args.q_rope_positions, DType::kI32,
                        facts.total_q);
  check.optional_vector("k_rope_positions", "rope.explicit_k_positions",
                        spec.rope.explicit_k_positions, args.k_rope_positions, DType::kI32,
                        facts.total_kv_len);
  check_scale("k_scale", args.k_scale, spec.k_scale_per_head, check, "k_scales", args.k_scales,
              spec.num_kv_heads);
  check_scale("v_scale", args.v_scale, spec.v_scale_per_head, check, "v_scales", args.v_scales,
              spec.num_kv_heads);
  check_outputs(check, spec, facts, args);
  check_written("o", args.o, args);
  if (args.lse.defined()) {
    check_written("lse", args.lse, args);
    WrittenOperand("lse", args.lse).apart_from("o", args.o);
  }
}

}  // namespace plait::detail
