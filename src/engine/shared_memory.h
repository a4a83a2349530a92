// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Which operands of a call share memory. What is written may share none with another operand: a
// kernel's workers read and write in no order that a caller could rely on.
#pragma once

#include <algorithm>
#include <cstdint>

#include "plait/tensor.h"

namespace plait::detail {

/// Whether both are the same elements at the same places, as for an operation in place.
bool same_places(const Tensor& a, const Tensor& b);

/// An operand that the call writes.
class WrittenOperand {
 public:
  /// Refuses a tensor of which an element would lie outside of the address space, or two may lie at
  /// one place: a stride that is less than what the axes inside of it span, as 0 is.
  WrittenOperand(const char* name, const Tensor& tensor);

  /// Refuses `other` unless it provably shares no byte with this one: they lie apart, or apart
  /// modulo a stride of either, as two views of one interleaved buffer, or so in every page of a
  /// pool. So is one that reaches outside of the address space. `index`: of one of several, or -1.
  void apart_from(const char* name, const Tensor& other, int index = -1) const {
    if (other.data == nullptr) return;
    const Bytes bytes = bytes_of(name, other, index);
    // The latest begin and the first end: a tensor without elements has both at one place.
    if (std::max(bytes.begin, bytes_.begin) < std::min(bytes.end, bytes_.end)) {
      look_closer(name, other, index, bytes);
    }
  }

  /// The same, but it may be this very tensor.
  void apart_from_or_in_place_of(const char* name, const Tensor& other) const;

 private:
  struct Bytes {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;  // past the last; that of an empty tensor is `begin`
  };
  static Bytes bytes_of(const char* name, const Tensor& tensor, int index);
  void look_closer(const char* name, const Tensor& other, int index, Bytes bytes) const;

  const char* name_;
  const Tensor& tensor_;
  Bytes bytes_;
};

}  // namespace plait::detail
