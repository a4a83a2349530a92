// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Launch parameters of the hopper kernels, readable by host and device. Addresses of a captured
// launch never change; what changes per step is in the plan blob.
#pragma once

#include "core/device/plan_layout.h"

namespace plait::device::hopper {

inline constexpr i32 kMaxViewOperands = 8;

struct Params {
  const i32* plan;  // the blob
  i32 group;
  i32 class_index;

  const u16* q;                     // bf16 [total_q, num_qo_heads, 128]
  u16* o;                           // bf16, same shape; f32 if `o_is_state`
  float* lse;                       // [total_q, num_qo_heads] or null
  i64 q_stride_row, q_stride_head;  // elements
  i64 o_stride_row, o_stride_head;
  i64 lse_stride_row, lse_stride_head;

  const i32* page_ids[kMaxViewOperands];  // one list per view; null if ragged
  i32 num_pages;                          // pages in the pool
  i32 page_size;

  float* state_o;    // [state rows, 128]
  float* state_lse;  // [state rows]
  u32* counters;     // one per merge and head, zero between launches
  u32* status;       // bit 0: a page id was outside the pool

  const float* sink;  // [num_qo_heads] or null
  float scale_log2;   // sm_scale * k_scale * log2(e)
  float v_scale;
  i32 group_size;   // query heads per KV head
  i32 causal;       // 0 or 1
  i32 window_left;  // -1: none
  i32 o_is_state;   // 1: `o` is the mergeable state in f32
};

inline constexpr u32 kStatusBadPage = 1;

}  // namespace plait::device::hopper
