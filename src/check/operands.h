// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A Problem in the terms of the engine: host page tables as views, and the tensors of a run.
#pragma once

#include <cstdint>
#include <vector>

#include "check/operand_memory.h"
#include "oracle/problem.h"
#include "plait/attention.h"

namespace plait::check {

/// Host data of one view; `view()` points into it.
struct ViewData {
  std::vector<std::int32_t> row_indptr;
  std::vector<std::int32_t> page_indptr;
  std::vector<std::int32_t> last_page_len;
  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> page_ids;
  bool per_kv_head = false;

  View view() const;
};

/// Batch, caches and mask of a problem. Block-sparse problems become pages of the largest size
/// that divides every column block, with positions; their block masks become custom mask bits.
class Operands {
 public:
  explicit Operands(const oracle::Problem& problem);

  const AttentionSpec& spec() const noexcept { return spec_; }
  /// Valid as long as this object.
  Batch batch() const;
  Capacity capacity() const;
  Policy policy() const;
  /// Places everything in `memory`; `o` and `lse` are outputs of it.
  RunArgs place(OperandMemory& memory);

 private:
  void build_paged();
  void build_block_sparse();
  void build_mask();

  const oracle::Problem& problem_;
  AttentionSpec spec_;
  std::vector<std::int32_t> qo_indptr_;
  std::vector<ViewData> views_data_;
  std::vector<View> views_;
  std::vector<std::int32_t> kv_len_;
  oracle::HostTensor k_;
  oracle::HostTensor v_;
  std::vector<std::uint8_t> mask_;
  std::vector<Tensor> page_ids_;  // kept for the spans of RunArgs
  std::vector<Tensor> positions_;
};

}  // namespace plait::check
