// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Free operations. Every tensor of a call lives on `engine`'s device; inputs and outputs may be
// strided (elements of a row contiguous). What is written needs a place for each of its elements
// and shares no byte with another tensor of the call: the two lie apart, or apart modulo a stride
// of either, as views of one interleaved buffer do, or so in every page of a pool. Where "in place"
// is said an output may be that very input, shape and strides alike. What does not fit is refused
// with Error{kInvalidArgument} naming the tensor, before anything is written.
//
// On a GPU calls are enqueued on `stream` and can be captured into a CUDA graph, which keeps alive
// what they use of `engine`. The first call of an operation with its dtypes (and for apply_rope its
// rope) loads a kernel and may compile it; inside a capture that is refused with Error{kMismatch}.
#pragma once

#include <span>

#include "plait/attention.h"

namespace plait {

/// Merges two softmax states over disjoint key sets, natural-base lse.
/// o_*: [rows, heads, dim] any float dtype (arithmetic in f32); lse_*: f32 [rows, heads].
/// `mask` (optional, u8 [rows]): rows with 0 keep state a. In place: o may be o_a, and lse lse_a.
/// The empty state (0, -inf) is the neutral element; merging with it keeps the other bit for bit.
void merge_state(const Engine& engine, const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b,
                 const Tensor& lse_b, const Tensor& o, const Tensor& lse, const Tensor& mask = {},
                 Stream stream = {});

/// Merges `num_states` softmax states over disjoint key sets at once, in their order, relative to
/// their largest lse. o_states [rows, num_states, heads, dim] and o [rows, heads, dim], any float
/// dtypes (arithmetic in f32); lse_states [rows, num_states, heads] and lse [rows, heads], f32.
void merge_states(const Engine& engine, const Tensor& o_states, const Tensor& lse_states,
                  const Tensor& o, const Tensor& lse, Stream stream = {});

/// Applies sink (f32 [heads], optional) and conversion to the dtype of `o` once, to a state.
/// A row with lse = -inf yields 0.
void finalize_state(const Engine& engine, const Tensor& o_state, const Tensor& lse_state,
                    const Tensor& sink, const Tensor& o, Stream stream = {});

/// Where each appended token goes: token t belongs to request batch_indices[t] at position
/// positions[t] of its page list; batch index -1 skips the token (padding).
/// k, v: [tokens, num_kv_heads, dim]; k_cache, v_cache: paged in `layout`; page_indptr i32
/// [requests + 1], page_ids i32. k and v have one dtype, so have the caches; it either equals the
/// caches' or is wider. Values are divided in f32 by k_scale / v_scale (finite, not 0) and the
/// quotients converted, both to nearest even; fp8 saturates. Two tokens for one slot are the
/// caller's error. On the host an index out of range is refused before anything is written; on a
/// GPU the token is skipped. The two caches may be one latent cache only if v is k's rows, or their
/// beginnings, as v_cache is k_cache's.
void append_paged_kv(const Engine& engine, const Tensor& k, const Tensor& v,
                     const Tensor& batch_indices, const Tensor& positions,
                     const Tensor& page_indptr, const Tensor& page_ids, const Tensor& k_cache,
                     const Tensor& v_cache, KvLayout layout, float k_scale = 1.0F,
                     float v_scale = 1.0F, Stream stream = {});

/// Rotates x [tokens, heads, dim] by positions i32 [tokens] into `out` (in place: may be x), as
/// `RopeSpec` says (without its explicit_*_positions, which speak of attention); elements past
/// rotary_dim are copied. Angles are accurate to 1e-4 rad up to position 2^20.
void apply_rope(const Engine& engine, const Tensor& x, const Tensor& positions,
                const RopeSpec& rope, const Tensor& out, Stream stream = {});

}  // namespace plait
