// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Checks of operands that every public call shares. Each throws Error{kInvalidArgument} naming the
// tensor, what it is and what was expected.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "plait/error.h"
#include "plait/tensor.h"

namespace plait::detail {

[[noreturn]] void refuse(std::string field, std::string value, std::string expected);

std::string device_text(Device device);
std::string shape_text(const Tensor& tensor);

class TensorChecker {
 public:
  explicit TensorChecker(Device device) : device_(device) {}

  void defined(const char* name, const Tensor& t, const char* meaning) const;
  /// On the engine's device, and not null unless empty. The CPU takes pinned host memory too.
  void on_device(const char* name, const Tensor& t) const;
  void dtype(const char* name, const Tensor& t, DType expected) const;
  void float_dtype(const char* name, const Tensor& t) const;
  /// An extent of -1 accepts anything that is not negative.
  void shape(const char* name, const Tensor& t, std::initializer_list<std::int64_t> extents,
             const char* meaning) const;
  /// Elements along the last axis are contiguous.
  void unit_stride(const char* name, const Tensor& t) const;
  /// A contiguous one-dimensional operand of exactly (or at least) `size` elements.
  void vector(const char* name, const Tensor& t, DType type, std::int64_t size, bool exact) const;
  /// `vector` if `asked`, else the operand must be absent.
  void optional_vector(const char* name, const char* asked_by, bool asked, const Tensor& t,
                       DType type, std::int64_t size) const;

 private:
  Device device_;
};

}  // namespace plait::detail
