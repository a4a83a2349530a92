// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "engine/tensor_checks.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace plait::detail {

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
  if (!TensorChecker::has_rank(tensor)) return "rank " + std::to_string(tensor.rank);
  std::string text = "[";
  for (std::int32_t axis = 0; axis < tensor.rank; ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(tensor.shape[static_cast<std::size_t>(axis)]);
  }
  return text + "]";
}

bool TensorChecker::has_elements(const Tensor& t) {
  const auto end = t.shape.begin() + t.rank;
  return std::find(t.shape.begin(), end, 0) == end;
}

void TensorChecker::refuse_place(const char* name, const Tensor& t) const {
  if (!is_reached(t.device)) {
    refuse(name, "a tensor on " + device_text(t.device), "a tensor on " + device_text(device_));
  }
  if (!has_rank(t)) {
    refuse(std::string(name) + ".shape", shape_text(t), "0.." + std::to_string(kMaxRank) + " axes");
  }
  refuse(name, "null", "memory for shape " + shape_text(t));
}

void TensorChecker::refuse_dtype(const char* name, const Tensor& t, std::optional<DType> expected) {
  if (expected ? t.dtype != *expected : !is_float(t.dtype)) {
    refuse(std::string(name) + ".dtype", std::string(to_string(t.dtype)),
           expected ? std::string(to_string(*expected)) : "f32, f16, bf16, f8_e4m3 or f8_e5m2");
  }
  const auto size = static_cast<std::uintptr_t>(size_of(t.dtype));
  refuse(name,
         "an address " + std::to_string(reinterpret_cast<std::uintptr_t>(t.data) % size) +
             " bytes past a multiple of " + std::to_string(size),
         "an address that is a multiple of " + std::to_string(size) + ", the size of an element");
}

void TensorChecker::refuse_shape(const char* name, const Tensor& t,
                                 std::initializer_list<std::int64_t> extents, const char* meaning) {
  std::string expected;
  for (const std::int64_t extent : extents) {
    expected += expected.empty() ? "[" : ", ";
    expected += extent < 0 ? "any" : std::to_string(extent);
  }
  refuse(std::string(name) + ".shape", shape_text(t), expected + "] " + meaning);
}

void TensorChecker::refuse_stride(const char* name, const Tensor& t) {
  refuse(std::string(name) + ".strides",
         std::to_string(t.strides[static_cast<std::size_t>(t.rank - 1)]) + " on the last axis",
         "1 (elements of a row are contiguous)");
}

void TensorChecker::refuse_unasked(const char* name, const char* asked_by) {
  refuse(name, "a tensor", std::string("nothing, since the spec does not set ") + asked_by);
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

}  // namespace plait::detail
