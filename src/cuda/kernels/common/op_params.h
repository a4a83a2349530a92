// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Parameters of the free operations' kernels, by value. Strides count elements; innermost strides
// are 1 unless a stride says otherwise. Dtypes are the kernel key's: q (first input), k (cache or
// second input), o (output). Blocks take work from a grid-stride loop, so any grid is right.
#pragma once

#include "core/device/portable.h"

namespace plait::device {

/// merge_state: o = merge(a, b) per (row, head). Key dtypes: q = o_a, k = o_b, o = o.
struct MergeStateParams {
  const void* o_a;     // [rows, heads, dim]
  const float* lse_a;  // [rows, heads]
  const void* o_b;
  const float* lse_b;
  void* o;         // may be o_a
  float* lse;      // may be lse_a
  const u8* mask;  // [rows] or null: rows with 0 keep state a
  i64 rows;
  i32 heads, dim;
  i64 o_a_stride_row, o_a_stride_head, lse_a_stride_row, lse_a_stride_head;
  i64 o_b_stride_row, o_b_stride_head, lse_b_stride_row, lse_b_stride_head;
  i64 o_stride_row, o_stride_head, lse_stride_row, lse_stride_head;
  i64 mask_stride;
};

/// merge_states: all `states` at once. Key dtypes: q = o_states, o = o.
struct MergeStatesParams {
  const void* o_states;     // [rows, states, heads, dim]
  const float* lse_states;  // [rows, states, heads]
  void* o;                  // [rows, heads, dim]
  float* lse;               // [rows, heads]
  i64 rows;
  i32 states, heads, dim;
  i64 in_stride_row, in_stride_state, in_stride_head;
  i64 lse_in_stride_row, lse_in_stride_state, lse_in_stride_head;
  i64 o_stride_row, o_stride_head, lse_stride_row, lse_stride_head;
};

/// finalize_state. Key dtypes: q = o_state, o = o.
struct FinalizeStateParams {
  const void* o_state;     // [rows, heads, dim]
  const float* lse_state;  // [rows, heads]
  const float* sink;       // [heads] or null
  void* o;
  i64 rows;
  i32 heads, dim;
  i64 in_stride_row, in_stride_head, lse_stride_row, lse_stride_head, sink_stride;
  i64 o_stride_row, o_stride_head;
};

/// append_paged_kv. Key dtypes: q = k and v, k = the caches.
struct AppendPagedKvParams {
  const void* k;             // [tokens, kv heads, k_dim]
  const void* v;             // [tokens, kv heads, v_dim]
  const i32* batch_indices;  // [tokens]; -1: skip the token
  const i32* positions;      // [tokens], position in the request's page list
  const i32* page_indptr;    // [requests + 1]
  const i32* page_ids;
  void* k_cache;  // by strides, NHD and HND alike
  void* v_cache;
  i64 tokens;
  i32 requests, kv_heads, k_dim, v_dim, page_size;
  i64 num_pages;           // of the pool
  i64 num_listed;          // entries of page_ids
  float k_scale, v_scale;  // values are divided by them before conversion
  i64 k_stride_token, k_stride_head, v_stride_token, v_stride_head;
  i64 k_cache_stride_page, k_cache_stride_slot, k_cache_stride_head;
  i64 v_cache_stride_page, v_cache_stride_slot, v_cache_stride_head;
};

/// apply_rope. Key dtypes: q = x, o = out; hooks say which pairing.
struct ApplyRopeParams {
  const void* x;            // [tokens, heads, dim]
  void* out;                // may be x
  const i32* positions;     // [tokens]
  const float* rope_turns;  // see AttentionParams
  i64 tokens;
  i32 heads, dim, rotary_dim;
  i64 x_stride_token, x_stride_head, out_stride_token, out_stride_head;
};

}  // namespace plait::device
