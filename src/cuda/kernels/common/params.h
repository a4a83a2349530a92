// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What an attention launch passes to a kernel of any family: one struct by value, written by the
// host in src/cuda and read on the device. Pointers are device addresses. Strides count elements.
// Everything here stays the same from plan to plan within a captured graph; what changes with a
// plan is read from the plan blob.
#pragma once

#include "core/device/portable.h"

namespace plait::device {

inline constexpr i32 kMaxParamViews = 8;
inline constexpr i32 kMaxVariantParams = 16;

/// Bits of the status word, set by kernels with atomicOr and read by `status()`.
enum StatusBit : u32 {
  kStatusBadPageId = 1,  // a page id outside the pool; the request's output was set to NaN
};

/// Layout of the status block: four words, zeroed when the workspace is made and by `status()`.
struct StatusBlock {
  u32 bits;
  u32 request;  // one of the requests concerned (whichever worker wrote last)
  i32 page_id;  // and the id it saw
  u32 reserved;
};

/// Who merges partial states.
enum MergeRole : i32 {
  kMergeInPlace = 0,  // of each output tile the last arriver, in plan order
  kMergeLater = 1,    // nobody in this launch: states are written and not counted
  kMergeOnly = 2,     // this launch does nothing else: all its warps share all merges
};

struct AttentionParams {
  const i32* plan;  // the blob of plan_layout.h
  i32 group;
  i32 class_index;
  i32 merge_role;  // MergeRole
  i64 plan_bytes;  // of the buffer that holds the plan, whatever the plan

  const void* q;  // [total_q, num_qo_heads, head_dim_qk], innermost stride 1
  i64 q_stride_row, q_stride_head;

  // Paged: [pages, slots of a page, kv heads, dim] by strides, for NHD and HND alike. Ragged:
  // [tokens, kv heads, dim], a token's stride is in *_stride_slot and *_stride_page is 0.
  const void* k;
  i64 k_stride_page, k_stride_slot, k_stride_head;
  const void* v;
  i64 v_stride_page, v_stride_slot, v_stride_head;
  i64 pool_extent;                       // paged: pages in the pool; ragged: tokens in K and V
  i32 page_size;                         // 1 for ragged
  i32 page_shift;                        // log2(page_size), or -1
  const i32* page_ids[kMaxParamViews];   // per view, see RowBlock::view
  i32 num_page_ids[kMaxParamViews];      // a later plan of a captured launch may have more
  const i32* positions[kMaxParamViews];  // per view, null for views without

  void* o;  // [total_q, num_qo_heads, head_dim_vo]
  i64 o_stride_row, o_stride_head;
  float* lse;  // [total_q, num_qo_heads], natural base; may be null
  i64 lse_stride_row, lse_stride_head;

  float* state_o;    // partial states: [state_rows, head_dim_vo], normalised
  float* state_lse;  // [state_rows], natural base
  float* fold_o;     // running states of canonical plans, in the order of the family's own threads
  u32* counters;     // of the group: zero before a run, and again after it
  StatusBlock* status;
  u64* worker_times;  // [workers][2] begin and end in ns of the global timer; measured kernels only

  i32 num_qo_heads, num_kv_heads, group_size;
  i32 head_dim_qk, head_dim_vo;  // true, unpadded
  i32 window_left;               // -1: off
  i32 causal;                    // 0 or 1
  float sm_scale;                // default filled in
  float soft_cap;                // 0: off
  float sigmoid_bias;
  float k_scale, v_scale;  // multiply k and v after widening
  const float* k_scales;   // [num_kv_heads] instead of the scalar; may be null
  const float* v_scales;
  const u8* custom_mask;
  const float* alibi_slopes;    // [num_qo_heads]
  const float* sink;            // [num_qo_heads]; null: none, or a state is wanted
  const i32* q_rope_positions;  // [total_q]; null: logical positions
  const i32* k_rope_positions;  // see RowBlock::rope_k_begin; null: logical positions
  // Turns per position of each rotated pair, float pairs high + low: [rotary_dim / 2][2]. The two
  // words together carry 48 bits, which keeps angles below 1e-4 rad of error up to position 2^20.
  const float* rope_turns;
  i32 rotary_dim;
  i32 write_state;  // 1: the mergeable state is wanted: no sink, no output hook
  // A user variant's parameters in declaration order: a scalar's float bits, or an array's address.
  u64 variant_params[kMaxVariantParams];
};

}  // namespace plait::device
