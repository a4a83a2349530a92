// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The free operations: shapes, dtypes and devices are checked here once, then the device's
// Operations do the work.
#include "plait/ops.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/attention_impl.h"
#include "engine/shared_memory.h"
#include "engine/tensor_checks.h"

namespace plait {
namespace {

using detail::refuse;
using detail::TensorChecker;
using detail::WrittenOperand;

/// o: [rows, heads, dim] float, elements of a row contiguous.
void check_rows(const TensorChecker& check, const char* name, const Tensor& o, std::int64_t rows,
                std::int64_t heads, std::int64_t dim) {
  check.defined(name, o, "an attention output");
  check.on_device(name, o);
  check.float_dtype(name, o);
  check.shape(name, o, {rows, heads, dim}, "(rows, heads, head_dim)");
  check.unit_stride(name, o);
}

void check_lse(const TensorChecker& check, const char* name, const Tensor& lse, std::int64_t rows,
               std::int64_t heads) {
  check.defined(name, lse, "the natural-base lse of a state");
  check.on_device(name, lse);
  check.dtype(name, lse, DType::kF32);
  check.shape(name, lse, {rows, heads}, "(rows, heads)");
}

/// Whether the rows of the narrower are the beginnings of the other's.
bool same_rows(Tensor a, Tensor b) {
  const auto last = static_cast<std::size_t>(a.rank - 1);
  a.shape[last] = b.shape[last] = std::min(a.shape[last], b.shape[last]);
  return detail::same_places(a, b);
}

std::int64_t extent(const Tensor& t, std::size_t axis, const char* name, std::int32_t rank) {
  if (t.rank != rank) {
    refuse(std::string(name) + ".shape", detail::shape_text(t),
           "a tensor of rank " + std::to_string(rank));
  }
  return t.shape[axis];
}

/// Any extent but the number of rows or tokens: kernels count it, and the bytes it stands for, in
/// 32 bits.
std::int64_t inner_extent(const Tensor& t, std::size_t axis, const char* name, std::int32_t rank) {
  const std::int64_t value = extent(t, axis, name, rank);
  if (value > 1 << 24) {
    refuse(std::string(name) + ".shape", detail::shape_text(t),
           "at most 2^24 on axis " + std::to_string(axis));
  }
  return value;
}

}  // namespace

void merge_state(const Engine& engine, const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b,
                 const Tensor& lse_b, const Tensor& o, const Tensor& lse, const Tensor& mask,
                 Stream stream) {
  const TensorChecker check(engine.options().device);
  const std::int64_t rows = extent(o_a, 0, "o_a", 3);
  const std::int64_t heads = inner_extent(o_a, 1, "o_a", 3);
  const std::int64_t dim = inner_extent(o_a, 2, "o_a", 3);
  check_rows(check, "o_a", o_a, rows, heads, dim);
  check_rows(check, "o_b", o_b, rows, heads, dim);
  check_rows(check, "o", o, rows, heads, dim);
  check_lse(check, "lse_a", lse_a, rows, heads);
  check_lse(check, "lse_b", lse_b, rows, heads);
  check_lse(check, "lse", lse, rows, heads);
  if (mask.defined()) {
    check.on_device("mask", mask);
    check.dtype("mask", mask, DType::kU8);
    check.shape("mask", mask, {rows}, "(rows)");
  }
  const WrittenOperand written("o", o);
  written.apart_from_or_in_place_of("o_a", o_a);
  written.apart_from("o_b", o_b);
  written.apart_from("lse_a", lse_a);
  written.apart_from("lse_b", lse_b);
  written.apart_from("mask", mask);
  const WrittenOperand written_lse("lse", lse);
  written_lse.apart_from_or_in_place_of("lse_a", lse_a);
  written_lse.apart_from("lse_b", lse_b);
  written_lse.apart_from("o_a", o_a);
  written_lse.apart_from("o_b", o_b);
  written_lse.apart_from("mask", mask);
  written_lse.apart_from("o", o);
  detail::operations_of(engine).merge_state(o_a, lse_a, o_b, lse_b, o, lse, mask, stream);
}

void merge_states(const Engine& engine, const Tensor& o_states, const Tensor& lse_states,
                  const Tensor& o, const Tensor& lse, Stream stream) {
  const TensorChecker check(engine.options().device);
  const std::int64_t rows = extent(o_states, 0, "o_states", 4);
  const std::int64_t states = inner_extent(o_states, 1, "o_states", 4);
  const std::int64_t heads = inner_extent(o_states, 2, "o_states", 4);
  const std::int64_t dim = inner_extent(o_states, 3, "o_states", 4);
  check.on_device("o_states", o_states);
  check.float_dtype("o_states", o_states);
  check.unit_stride("o_states", o_states);
  check.on_device("lse_states", lse_states);
  check.dtype("lse_states", lse_states, DType::kF32);
  check.shape("lse_states", lse_states, {rows, states, heads}, "(rows, num_states, heads)");
  check_rows(check, "o", o, rows, heads, dim);
  check_lse(check, "lse", lse, rows, heads);
  const WrittenOperand written("o", o);
  written.apart_from("o_states", o_states);
  written.apart_from("lse_states", lse_states);
  const WrittenOperand written_lse("lse", lse);
  written_lse.apart_from("lse_states", lse_states);
  written_lse.apart_from("o_states", o_states);
  written_lse.apart_from("o", o);
  detail::operations_of(engine).merge_states(o_states, lse_states, o, lse, stream);
}

void finalize_state(const Engine& engine, const Tensor& o_state, const Tensor& lse_state,
                    const Tensor& sink, const Tensor& o, Stream stream) {
  const TensorChecker check(engine.options().device);
  const std::int64_t rows = extent(o_state, 0, "o_state", 3);
  const std::int64_t heads = inner_extent(o_state, 1, "o_state", 3);
  const std::int64_t dim = inner_extent(o_state, 2, "o_state", 3);
  check_rows(check, "o_state", o_state, rows, heads, dim);
  check_rows(check, "o", o, rows, heads, dim);
  check_lse(check, "lse_state", lse_state, rows, heads);
  if (sink.defined()) check.vector("sink", sink, DType::kF32, heads, true);
  const WrittenOperand written("o", o);
  written.apart_from("o_state", o_state);
  written.apart_from("lse_state", lse_state);
  written.apart_from("sink", sink);
  detail::operations_of(engine).finalize_state(o_state, lse_state, sink, o, stream);
}

void append_paged_kv(const Engine& engine, const Tensor& k, const Tensor& v,
                     const Tensor& batch_indices, const Tensor& positions,
                     const Tensor& page_indptr, const Tensor& page_ids, const Tensor& k_cache,
                     const Tensor& v_cache, KvLayout layout, float k_scale, float v_scale,
                     Stream stream) {
  const TensorChecker check(engine.options().device);
  const std::int64_t tokens = extent(k, 0, "k", 3);
  const std::int64_t heads = inner_extent(k, 1, "k", 3);
  check_rows(check, "k", k, tokens, heads, inner_extent(k, 2, "k", 3));
  check_rows(check, "v", v, tokens, heads, inner_extent(v, 2, "v", 3));
  if (layout != KvLayout::kNhd && layout != KvLayout::kHnd) {
    refuse("layout", std::to_string(static_cast<int>(layout)), "NHD or HND");
  }
  const std::size_t token_axis = layout == KvLayout::kNhd ? 1 : 2;
  const std::int64_t pages = extent(k_cache, 0, "k_cache", 4);
  const std::int64_t page_size = inner_extent(k_cache, token_axis, "k_cache", 4);
  const auto check_cache = [&](const char* name, const Tensor& cache, const Tensor& source) {
    check.on_device(name, cache);
    check.float_dtype(name, cache);
    if (layout == KvLayout::kNhd) {
      check.shape(name, cache, {pages, page_size, heads, source.shape[2]},
                  "(num_pages, page_size, num_kv_heads, head_dim)");
    } else {
      check.shape(name, cache, {pages, heads, page_size, source.shape[2]},
                  "(num_pages, num_kv_heads, page_size, head_dim)");
    }
    check.unit_stride(name, cache);
    if (source.dtype != cache.dtype && size_of(source.dtype) <= size_of(cache.dtype)) {
      refuse(std::string(name) + ".dtype", std::string(to_string(cache.dtype)),
             "the dtype of the appended tokens (" + std::string(to_string(source.dtype)) +
                 ") or a narrower one");
    }
  };
  check_cache("k_cache", k_cache, k);
  check_cache("v_cache", v_cache, v);
  // One pair of dtypes serves both: a kernel is specialised for it.
  check.dtype("v", v, k.dtype);
  check.dtype("v_cache", v_cache, k_cache.dtype);
  if (page_size < 1) {
    refuse("k_cache.shape", detail::shape_text(k_cache), "pages of at least one token");
  }
  check.vector("batch_indices", batch_indices, DType::kI32, tokens, true);
  check.vector("positions", positions, DType::kI32, tokens, true);
  check.vector("page_indptr", page_indptr, DType::kI32, 1, false);
  inner_extent(page_indptr, 0, "page_indptr", 1);
  check.vector("page_ids", page_ids, DType::kI32, 0, false);
  const auto check_scale = [](const char* name, float scale) {
    if (!std::isfinite(scale) || scale == 0.0F)
      refuse(name, std::to_string(scale), "a finite number other than 0");
  };
  check_scale("k_scale", k_scale);
  check_scale("v_scale", v_scale);
  const auto check_written = [&](const char* name, const Tensor& cache) {
    const WrittenOperand written(name, cache);
    written.apart_from("k", k);
    written.apart_from("v", v);
    written.apart_from("batch_indices", batch_indices);
    written.apart_from("positions", positions);
    written.apart_from("page_indptr", page_indptr);
    written.apart_from("page_ids", page_ids);
    return written;
  };
  check_written("k_cache", k_cache);
  const WrittenOperand written_v = check_written("v_cache", v_cache);
  // A latent cache gets the same values at the same places twice.
  const bool latent = same_rows(k, v) && same_rows(k_cache, v_cache) && k_scale == v_scale;
  if (!latent) written_v.apart_from("k_cache", k_cache);
  if (tokens == 0) return;
  detail::operations_of(engine).append_paged_kv(k, v, batch_indices, positions, page_indptr,
                                                page_ids, k_cache, v_cache, layout, k_scale,
                                                v_scale, stream);
}

void apply_rope(const Engine& engine, const Tensor& x, const Tensor& positions,
                const RopeSpec& rope, const Tensor& out, Stream stream) {
  const TensorChecker check(engine.options().device);
  const std::int64_t tokens = extent(x, 0, "x", 3);
  const std::int64_t heads = inner_extent(x, 1, "x", 3);
  const std::int64_t dim = inner_extent(x, 2, "x", 3);
  check_rows(check, "x", x, tokens, heads, dim);
  check_rows(check, "out", out, tokens, heads, dim);
  if (out.dtype != x.dtype) {
    refuse("out.dtype", std::string(to_string(out.dtype)),
           std::string(to_string(x.dtype)) + ", as x");
  }
  check.vector("positions", positions, DType::kI32, tokens, true);
  if (rope.kind == RopeKind::kNone) refuse("rope.kind", "none", "half or interleaved");
  const auto refuse_explicit = [](const char* field, bool set) {
    if (set) refuse(field, "true", "false: the positions are an operand of this operation");
  };
  refuse_explicit("rope.explicit_q_positions", rope.explicit_q_positions);
  refuse_explicit("rope.explicit_k_positions", rope.explicit_k_positions);
  validate_rope(rope, static_cast<std::int32_t>(dim));
  const WrittenOperand written("out", out);
  written.apart_from_or_in_place_of("x", x);
  written.apart_from("positions", positions);
  if (tokens == 0) return;
  detail::operations_of(engine).apply_rope(x, positions, rope, out, stream);
}

}  // namespace plait
