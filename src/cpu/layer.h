// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// One layer group's plan and operands in the form in which the item loops read them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/device/plan_layout.h"
#include "cpu/kernel_table.h"
#include "cpu/rope_table.h"
#include "cpu/user_variant.h"
#include "plait/attention.h"

namespace plait::cpu {

/// Typed access to one group of a plan blob.
struct GroupView {
  const std::int32_t* words = nullptr;
  const device::GroupHeader* header = nullptr;

  GroupView() = default;
  GroupView(const std::int32_t* blob, std::int32_t group)
      : words(blob), header(at<device::GroupHeader>(device::group_header_offset(group))) {}

  template <class T>
  const T* at(std::int32_t offset) const noexcept {
    return reinterpret_cast<const T*>(words + offset);
  }
  const device::RowBlock& block(std::int32_t i) const noexcept {
    return at<device::RowBlock>(header->block_offset)[i];
  }
  const device::Piece& piece(std::int32_t i) const noexcept {
    return at<device::Piece>(header->piece_offset)[i];
  }
  const device::Run& run(std::int32_t i) const noexcept {
    return at<device::Run>(header->run_offset)[i];
  }
  const device::Merge& merge(std::int32_t i) const noexcept {
    return at<device::Merge>(header->merge_offset)[i];
  }
  const device::StateRef& ref(std::int32_t i) const noexcept {
    return at<device::StateRef>(header->ref_offset)[i];
  }
  std::int32_t kv_len(std::int32_t request) const noexcept {
    return at<std::int32_t>(header->kv_len_offset)[request];
  }
  const std::int32_t* q_indptr() const noexcept {
    return at<std::int32_t>(header->q_indptr_offset);
  }
  /// The request that owns a query row.
  std::int32_t request_of(std::int32_t q_row) const noexcept;
};

/// A K or V cache; strides in bytes.
struct CacheView {
  const char* data = nullptr;
  std::int64_t page_stride = 0;  // ragged: of a token
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

struct ListView {
  const std::int32_t* data = nullptr;
  std::int64_t stride = 1;
  std::int32_t operator[](std::int64_t i) const noexcept { return data[i * stride]; }
};

struct Layer {
  const AttentionSpec* spec = nullptr;
  const RunArgs* args = nullptr;
  const KernelTable* kernels = nullptr;
  const RopeTable* rope = nullptr;       // null: no rope
  const UserVariant* variant = nullptr;  // null: built-in only
  GroupView plan;

  int group_size = 1;
  int dim_qk = 0, dim_vo = 0;
  int pad_qk = 0, pad_vo = 0;  // rounded up to lanes
  bool softmax = true;
  bool ranged = false;           // causal or window: rows have a first and last visible position
  bool natural_logits = false;   // some hook wants logits in natural units before the softmax
  bool values_are_keys = false;  // V is the same memory as K: convert once
  bool may_stream = false;       // nothing but the dot product happens between K, logits and V

  CacheView k, v;
  std::array<ListView, kMaxViews> page_ids;
  std::array<ListView, kMaxViews> positions;
  ListView q_rope_positions, k_rope_positions;

  float* state_o = nullptr;    // [state rows, dim_vo]
  float* state_lse = nullptr;  // [state rows]
  std::int32_t* counters = nullptr;

  float k_scale(std::int32_t kv_head) const noexcept {
    return scale_of(args->k_scale, args->k_scales, kv_head);
  }
  float v_scale(std::int32_t kv_head) const noexcept {
    return scale_of(args->v_scale, args->v_scales, kv_head);
  }

 private:
  static float scale_of(float scalar, const Tensor& per_head, std::int32_t head) noexcept {
    if (!per_head.defined()) return scalar;
    return static_cast<const float*>(per_head.data)[head * per_head.strides[0]];
  }
};

/// Binds operands to a plan. `args` was validated.
Layer bind_layer(const AttentionSpec& spec, const RunArgs& args, const std::int32_t* plan_words,
                 const KernelTable& kernels);

}  // namespace plait::cpu
