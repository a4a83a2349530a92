// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "engine/tensor_checks.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace plait::detail {
namespace {

/// Whether all of its extents are in the arrays of a Tensor.
bool has_rank(const Tensor& t) { return t.rank >= 0 && t.rank <= kMaxRank; }

/// Asked of extents one by one: their product may not be a number of 64 bits.
bool has_elements(const Tensor& t) {
  const auto end = t.shape.begin() + t.rank;
  return std::find(t.shape.begin(), end, 0) == end;
}

void require_aligned_elements(const char* name, const Tensor& t) {
  const auto size = static_cast<std::uintptr_t>(size_of(t.dtype));
  // Sizes are powers of two, and every operand of every run comes here.
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(t.data) & (size - 1);
  if (past == 0) return;
  refuse(name,
         "an address " + std::to_string(past) + " bytes past a multiple of " + std::to_string(size),
         "an address that is a multiple of " + std::to_string(size) + ", the size of an element");
}

}  // namespace

void refuse(std::string field, std::string value, std::string expected) {
  throw Error(ErrorCode::kInvalidArgument, std::move(field), std::move(value), std::move(expected));
}

std::string device_text(Device d) {
  switch (d.kind) {
    case DeviceKind::kCpu: return d.index == 0 ? "cpu" : "cpu:" + std::to_string(d.index);
    case DeviceKind::kCuda: return "cuda:" + std::to_string(d.index);
    case DeviceKind::kCudaHost: return "pinned host memory";
  }
  return "device kind " + std::to_string(static_cast<int>(d.kind));
}

std::string shape_text(const Tensor& tensor) {
  if (!has_rank(tensor)) return "rank " + std::to_string(tensor.rank);
  std::string text = "[";
  for (std::int32_t axis = 0; axis < tensor.rank; ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(tensor.shape[static_cast<std::size_t>(axis)]);
  }
  return text + "]";
}

void TensorChecker::defined(const char* name, const Tensor& t, const char* meaning) const {
  if (!t.defined()) refuse(name, "nothing", meaning);
}

void TensorChecker::on_device(const char* name, const Tensor& t) const {
  const bool pinned_for_cpu =
      device_.kind == DeviceKind::kCpu && t.device.kind == DeviceKind::kCudaHost;
  const bool fits = t.device == device_ || pinned_for_cpu;
  if (!fits)
    refuse(name, "a tensor on " + device_text(t.device), "a tensor on " + device_text(device_));
  if (!has_rank(t)) {
    refuse(std::string(name) + ".shape", shape_text(t), "0.." + std::to_string(kMaxRank) + " axes");
  }
  if (t.data == nullptr && has_elements(t))
    refuse(name, "null", "memory for shape " + shape_text(t));
}

void TensorChecker::dtype(const char* name, const Tensor& t, DType expected) const {
  if (t.dtype != expected) {
    refuse(std::string(name) + ".dtype", std::string(to_string(t.dtype)),
           std::string(to_string(expected)));
  }
  require_aligned_elements(name, t);
}

void TensorChecker::float_dtype(const char* name, const Tensor& t) const {
  if (!is_float(t.dtype)) {
    refuse(std::string(name) + ".dtype", std::string(to_string(t.dtype)),
           "f32, f16, bf16, f8_e4m3 or f8_e5m2");
  }
  require_aligned_elements(name, t);
}

void TensorChecker::shape(const char* name, const Tensor& t,
                          std::initializer_list<std::int64_t> extents, const char* meaning) const {
  bool fits = t.rank == static_cast<std::int32_t>(extents.size());
  if (fits) {
    std::size_t axis = 0;
    for (const std::int64_t extent : extents) {
      fits = fits && (extent < 0 ? t.shape[axis] >= 0 : t.shape[axis] == extent);
      ++axis;
    }
  }
  if (fits) return;
  std::string expected;
  for (const std::int64_t extent : extents) {
    expected += expected.empty() ? "[" : ", ";
    expected += extent < 0 ? "any" : std::to_string(extent);
  }
  refuse(std::string(name) + ".shape", shape_text(t), expected + "] " + meaning);
}

void TensorChecker::unit_stride(const char* name, const Tensor& t) const {
  const auto last = static_cast<std::size_t>(t.rank - 1);
  if (t.rank > 0 && t.shape[last] > 1 && t.strides[last] != 1) {
    refuse(std::string(name) + ".strides", std::to_string(t.strides[last]) + " on the last axis",
           "1 (elements of a row are contiguous)");
  }
}

void TensorChecker::vector(const char* name, const Tensor& t, DType type, std::int64_t size,
                           bool exact) const {
  if (!t.defined()) {
    refuse(
        name, "nothing",
        "a " + std::string(to_string(type)) + " tensor of " + std::to_string(size) + " elements");
  }
  on_device(name, t);
  dtype(name, t, type);
  if (t.rank != 1 || (exact ? t.shape[0] != size : t.shape[0] < size)) {
    refuse(std::string(name) + ".shape", shape_text(t),
           "[" + std::to_string(size) + (exact ? "]" : " or more]"));
  }
  unit_stride(name, t);
}

void TensorChecker::optional_vector(const char* name, const char* asked_by, bool asked,
                                    const Tensor& t, DType type, std::int64_t size) const {
  if (asked) {
    vector(name, t, type, size, true);
  } else if (t.defined()) {
    refuse(name, "a tensor", std::string("nothing, since the spec does not set ") + asked_by);
  }
}

}  // namespace plait::detail
