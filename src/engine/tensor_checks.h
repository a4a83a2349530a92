// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Checks of operands that every public call shares. Each throws Error{kInvalidArgument} naming the
// tensor, what it is and what was expected.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "plait/error.h"
#include "plait/tensor.h"

namespace plait::detail {

[[noreturn]] void refuse(std::string field, std::string value, std::string expected);

std::string device_text(Device device);
std::string shape_text(const Tensor& tensor);

/// Whoever runs a layer waits for these: what holds is seen inline, and what does not is explained
/// elsewhere.
class TensorChecker {
 public:
  explicit TensorChecker(Device device) : device_(device) {}

  void defined(const char* name, const Tensor& t, const char* meaning) const {
    if (!t.defined()) refuse(name, "nothing", meaning);
  }
  /// On the engine's device, and not null unless empty. The CPU takes pinned host memory too.
  void on_device(const char* name, const Tensor& t) const {
    if (!is_reached(t.device) || !has_rank(t) || (t.data == nullptr && has_elements(t))) {
      refuse_place(name, t);
    }
  }
  void dtype(const char* name, const Tensor& t, DType expected) const {
    if (t.dtype != expected || !has_aligned_elements(t)) refuse_dtype(name, t, expected);
  }
  void float_dtype(const char* name, const Tensor& t) const {
    if (!is_float(t.dtype) || !has_aligned_elements(t)) refuse_dtype(name, t, std::nullopt);
  }
  /// An extent of -1 accepts anything that is not negative.
  void shape(const char* name, const Tensor& t, std::initializer_list<std::int64_t> extents,
             const char* meaning) const {
    bool fits = t.rank == static_cast<std::int32_t>(extents.size());
    std::size_t axis = 0;
    for (const std::int64_t extent : extents) {
      fits = fits && (extent < 0 ? t.shape[axis] >= 0 : t.shape[axis] == extent);
      ++axis;
    }
    if (!fits) refuse_shape(name, t, extents, meaning);
  }
  /// Elements along the last axis are contiguous.
  void unit_stride(const char* name, const Tensor& t) const {
    const auto last = static_cast<std::size_t>(t.rank - 1);
    if (t.rank > 0 && t.shape[last] > 1 && t.strides[last] != 1) refuse_stride(name, t);
  }
  /// A contiguous one-dimensional operand of exactly (or at least) `size` elements.
  void vector(const char* name, const Tensor& t, DType type, std::int64_t size, bool exact) const;
  /// `vector` if `asked`, else the operand must be absent.
  void optional_vector(const char* name, const char* asked_by, bool asked, const Tensor& t,
                       DType type, std::int64_t size) const {
    if (asked) {
      vector(name, t, type, size, true);
    } else if (t.defined()) {
      refuse_unasked(name, asked_by);
    }
  }

 private:
  /// Whether all of its extents are in the arrays of a Tensor.
  static bool has_rank(const Tensor& t) { return t.rank >= 0 && t.rank <= kMaxRank; }
  static bool has_aligned_elements(const Tensor& t) {
    // Sizes are powers of two, and a division would take longer than the other checks.
    const auto size = static_cast<std::uintptr_t>(size_of(t.dtype));
    return (reinterpret_cast<std::uintptr_t>(t.data) & (size - 1)) == 0;
  }
  /// Asked of extents one by one: their product may not be a number of 64 bits.
  static bool has_elements(const Tensor& t);
  bool is_reached(Device device) const {
    return device == device_ ||
           (device_.kind == DeviceKind::kCpu && device.kind == DeviceKind::kCudaHost);
  }
  friend std::string shape_text(const Tensor& tensor);

  [[noreturn]] void refuse_place(const char* name, const Tensor& t) const;
  [[noreturn]] static void refuse_dtype(const char* name, const Tensor& t,
                                        std::optional<DType> expected);
  [[noreturn]] static void refuse_shape(const char* name, const Tensor& t,
                                        std::initializer_list<std::int64_t> extents,
                                        const char* meaning);
  [[noreturn]] static void refuse_stride(const char* name, const Tensor& t);
  [[noreturn]] static void refuse_unasked(const char* name, const char* asked_by);

  Device device_;
};

}  // namespace plait::detail
