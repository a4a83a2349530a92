// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// An output whose elements do not lie row after row.
#pragma once

#include <string>

#include "check/operand_memory.h"

namespace plait::check {

/// Rows of a head lie together, with room behind each row and each head that nobody may write.
class SpreadOutput {
 public:
  /// Of the dtype and shape of `plain`, [rows, heads] or [rows, heads, dim].
  SpreadOutput(OperandMemory& memory, std::string name, const Tensor& plain);

  const Tensor& view() const noexcept { return view_; }
  /// Its elements, row-major. Throws Error{kInternal} if a byte between them was written.
  oracle::HostTensor fetch() const;

 private:
  OperandMemory* memory_;
  std::string name_;
  Tensor all_;
  Tensor view_;
};

}  // namespace plait::check
