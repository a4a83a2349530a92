// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A Problem in the terms of the engine: host page tables as views, and the tensors of a run.
#pragma once

#include <cstdint>
#include <vector>

#include "check/operand_memory.h"
#include "core/owned_batch.h"
#include "oracle/problem.h"
#include "plait/attention.h"

namespace plait::check {

/// Batch, caches and mask of a problem. Block-sparse problems become pages of the largest size
/// that divides every column block, with positions; their block masks become custom mask bits.
class Operands {
 public:
  explicit Operands(const oracle::Problem& problem);

  const AttentionSpec& spec() const noexcept { return spec_; }
  /// Valid as long as this object.
  const Batch& batch() const noexcept { return batch_; }
  Capacity capacity() const;
  Policy policy() const;
  /// Places everything in `memory`; `o` and `lse` are outputs of it.
  RunArgs place(OperandMemory& memory);

 private:
  void build_paged();
  void build_block_sparse();

  const oracle::Problem& problem_;
  AttentionSpec spec_;
  OwnedBatch arrays_;
  Batch batch_;                         // over them
  std::vector<oracle::Ints> page_ids_;  // per view; none if ragged
  oracle::HostTensor k_;
  oracle::HostTensor v_;
  std::vector<std::uint8_t> mask_;
  std::vector<Tensor> placed_ids_;  // kept for the spans of RunArgs
  std::vector<Tensor> placed_positions_;
};

}  // namespace plait::check
