// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// TENSOR values: named, generated or literal.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/convert.h"
#include "core/text.h"
#include "oracle/parse_internal.h"
#include "oracle/philox.h"

namespace plait::oracle {
namespace {

constexpr std::int64_t kMaxExtent = std::int64_t{1} << 47;

std::string expected_text(const Ints& expected) {
  std::string out = "shape [";
  for (std::size_t axis = 0; axis < expected.size(); ++axis) {
    if (axis > 0) out += ", ";
    out += expected[axis] < 0 ? std::string("any") : std::to_string(expected[axis]);
  }
  return out + "]";
}

void check_shape(const Ints& shape, const Ints& expected, const std::string& path) {
  bool same = shape.size() == expected.size();
  for (std::size_t axis = 0; same && axis < shape.size(); ++axis) {
    same = expected[axis] < 0 || shape[axis] == expected[axis];
  }
  if (!same) {
    throw Error(ErrorCode::kInvalidArgument, path, "shape " + shape_text(shape),
                expected_text(expected));
  }
}

// Where a dtype of the file may go: the same type, or a wider one that is rounded.
bool may_convert(std::string_view from, DType to) {
  if (from == safetensors_name(to)) return true;
  const auto bytes = safetensors_size(from);
  const bool floating = from == "F64" || from == "F32" || from == "F16" || from == "BF16";
  return floating && *bytes > size_of(to);
}

double file_element(std::string_view dtype, const char* data, std::int64_t index) {
  if (dtype == "F64") {
    std::uint64_t bits;
    std::memcpy(&bits, data + index * 8, 8);
    return std::bit_cast<double>(bits);
  }
  if (dtype == "F32") return load_element(DType::kF32, data, index);
  if (dtype == "F16") return load_element(DType::kF16, data, index);
  return load_element(DType::kBF16, data, index);
}

// Reads "shape", "stride" and "offset" over `available` elements of a flat tensor.
void parse_view(const Node& node, const Ints& own_shape, std::int64_t available,
                const Ints& expected, HostTensor& out) {
  out.shape = node.has("shape") ? node.get("shape").integers(0, kMaxExtent) : own_shape;
  check_shape(out.shape, expected, node.path());
  checked_size(out.shape, node.child_path("shape"));
  out.offset = node.has("offset") ? node.get("offset").integer(0, kMaxExtent) : 0;
  if (node.has("stride")) {
    const Node stride = node.get("stride");
    out.strides = stride.integers(-kMaxExtent, kMaxExtent);
    if (out.strides.size() != out.shape.size()) {
      stride.refuse(std::to_string(out.shape.size()) + " strides, one per axis");
    }
  } else {
    out.strides = contiguous_strides(out.shape);
  }
  check_reach(out.shape, out.strides, out.offset, available, node.path());
}

void literal_shape(const Json& value, Ints& shape) {
  const Json* level = &value;
  while (level->is_array()) {
    shape.push_back(static_cast<std::int64_t>(level->size()));
    if (level->empty()) return;
    level = &(*level)[0];
  }
}

void flatten_literal(const Node& node, const Ints& shape, std::size_t axis,
                     std::vector<double>& out) {
  if (axis == shape.size()) {
    out.push_back(node.any_number());
    return;
  }
  const std::size_t count = node.length("a nested list of numbers");
  if (static_cast<std::int64_t>(count) != shape[axis]) {
    node.refuse(std::to_string(shape[axis]) + " entries, as in the lists beside it");
  }
  for (std::size_t n = 0; n < count; ++n) flatten_literal(node.element(n), shape, axis + 1, out);
}

// Allocates for shape and optional stride/offset; slots that no element names hold NaN, so that
// a stray read shows.
HostTensor allocate_generated(const Node& node, DType dtype, Ints shape) {
  if (!node.has("stride") && !node.has("offset")) {
    return HostTensor::zeros(dtype, std::move(shape), node.path());
  }
  HostTensor out;
  out.dtype = dtype;
  out.shape = std::move(shape);
  out.offset = node.has("offset") ? node.get("offset").integer(0, kMaxExtent) : 0;
  out.strides = contiguous_strides(out.shape);
  if (node.has("stride")) {
    const Node stride = node.get("stride");
    out.strides = stride.integers(0, kMaxExtent);
    if (out.strides.size() != out.shape.size()) {
      stride.refuse(std::to_string(out.shape.size()) + " strides, one per axis");
    }
  }
  // Filling takes its time by the element, also where strides put many of them into one place.
  require_memory(checked_size(out.shape, node.path()) * size_of(dtype), node.path());
  Int128 reach = out.offset;
  for (std::size_t axis = 0; axis < out.shape.size(); ++axis) {
    if (out.shape[axis] > 0) {
      reach += static_cast<Int128>(out.shape[axis] - 1) * out.strides[axis];
    }
  }
  if (reach >= kMaxExtent) {
    throw Error(ErrorCode::kInvalidArgument, node.path(), "strides " + shape_text(out.strides),
                "a view of fewer than 2^47 elements");
  }
  const auto elements = static_cast<std::int64_t>(reach) + 1;
  HostTensor gaps = HostTensor::zeros(dtype, {elements}, node.path());
  gaps.fill_constant(std::numeric_limits<double>::quiet_NaN());
  out.storage = gaps.storage;
  return out;
}

void fill_with(const Node& fill, HostTensor& out, bool fresh_zeros) {
  constexpr std::string_view kExpected =
      "\"zeros\", \"ones\", \"nan\", {\"const\": x}, {\"normal\": seed} or {\"index\": axis}";
  const Json& json = fill.json();
  if (json.is_string()) {
    const auto& name = json.get_ref<const std::string&>();
    if (name == "zeros") {
      if (!fresh_zeros) out.fill_constant(0.0);
      return;
    }
    if (name == "ones") return out.fill_constant(1.0);
    if (name == "nan") return out.fill_constant(std::numeric_limits<double>::quiet_NaN());
    fill.refuse(kExpected);
  }
  if (!json.is_object() || json.size() != 1) fill.refuse(kExpected);
  fill.expect_object({"const", "normal", "index"});
  if (fill.has("const")) {
    return out.fill_constant(fill.get("const").any_number());
  }
  if (fill.has("normal")) {
    const auto seed = static_cast<std::uint64_t>(
        fill.get("normal").integer(0, std::numeric_limits<std::int64_t>::max()));
    return out.fill_by_number([seed](std::int64_t n, const auto&) {
      return static_cast<double>(normal_element(seed, static_cast<std::uint64_t>(n)));
    });
  }
  if (out.shape.empty()) fill.refuse("a fill other than \"index\" for a tensor without axes");
  const std::int64_t axis =
      fill.get("index").integer(0, static_cast<std::int64_t>(out.shape.size()) - 1);
  out.fill_by_number([axis](std::int64_t, const auto& index) {
    return static_cast<double>(index[static_cast<std::size_t>(axis)]);
  });
}

}  // namespace

std::shared_ptr<Buffer> TensorResolver::convert(const std::string& name,
                                                const SafetensorsEntry& entry, DType dtype,
                                                const Node& node) {
  auto& slot = converted_[{name, dtype}];
  if (slot != nullptr) return slot;
  const std::int64_t count = checked_size(entry.shape, node.path());
  auto buffer = std::make_shared<Buffer>(count * size_of(dtype), node.path());
  const std::string_view data = tensors_->data(entry);
  if (entry.dtype == safetensors_name(dtype)) {
    if (!data.empty()) std::memcpy(buffer->data(), data.data(), data.size());
  } else {
    for (std::int64_t n = 0; n < count; ++n) {
      store_element(dtype, buffer->data(), n, file_element(entry.dtype, data.data(), n));
    }
  }
  slot = std::move(buffer);
  return slot;
}

HostTensor TensorResolver::named(const Node& node, DType dtype, const Ints& expected) {
  node.expect_object({"name", "shape", "stride", "offset"});
  const Node name_node = node.get("name");
  const std::string& name = name_node.string("the name of a tensor");
  if (tensors_ == nullptr) name_node.refuse("no named tensor (--tensors was not given)");
  const auto found = tensors_->entries().find(name);
  if (found == tensors_->entries().end()) {
    std::string list;
    for (const auto& [key, entry] : tensors_->entries()) {
      if (list.size() > 200) {
        list += ", ...";
        break;
      }
      list += (list.empty() ? "" : ", ") + quote_text(key);
    }
    name_node.refuse("a tensor of the --tensors file (it has: " + list + ")");
  }
  const SafetensorsEntry& entry = found->second;
  if (!may_convert(entry.dtype, dtype)) {
    throw Error(ErrorCode::kInvalidArgument, node.path(),
                "tensor \"" + name + "\" of dtype " + entry.dtype,
                std::string(safetensors_name(dtype)) + " or a wider floating type");
  }
  HostTensor out;
  out.dtype = dtype;
  parse_view(node, entry.shape, checked_size(entry.shape, node.path()), expected, out);
  out.storage = convert(name, entry, dtype, node);
  return out;
}

HostTensor TensorResolver::resolve(const Node& node, DType dtype, const Ints& expected,
                                   const HostTensor* base, std::string_view base_name) {
  constexpr std::string_view kExpected =
      "a TENSOR: {\"name\": ...}, {\"shape\": ..., \"fill\": ...} or {\"data\": ...}";
  if (!node.json().is_object()) node.refuse(kExpected);
  if (node.has("name")) return named(node, dtype, expected);
  if (node.has("view_of")) {
    node.expect_object({"view_of", "shape", "stride", "offset"});
    const Node target = node.get("view_of");
    if (base == nullptr || target.string() != base_name) {
      target.refuse(base == nullptr ? "no view_of here" : "\"" + std::string(base_name) + "\"");
    }
    HostTensor out;
    out.dtype = dtype;
    const std::int64_t available = base->storage->bytes() / size_of(dtype);
    parse_view(node, base->shape, available, expected, out);
    out.storage = base->storage;
    return out;
  }
  node.expect_object({"name", "view_of", "shape", "fill", "data", "stride", "offset"});
  if (node.has("data") == node.has("fill")) node.refuse(kExpected);
  if (node.has("fill")) {
    Ints shape = node.get("shape").integers(0, kMaxExtent);
    check_shape(shape, expected, node.path());
    HostTensor out = allocate_generated(node, dtype, std::move(shape));
    fill_with(node.get("fill"), out, !node.has("stride") && !node.has("offset"));
    return out;
  }
  const Node data = node.get("data");
  data.length("nested lists of numbers");
  Ints shape;
  literal_shape(data.json(), shape);
  if (node.has("shape")) {
    const Ints given = node.get("shape").integers(0, kMaxExtent);
    const bool both_empty =
        data.json().empty() && checked_size(given, node.child_path("shape")) == 0;
    if (given != shape && !both_empty) {
      throw Error(ErrorCode::kInvalidArgument, node.child_path("data"),
                  "lists of shape " + shape_text(shape), "shape " + shape_text(given));
    }
    shape = given;
  }
  check_shape(shape, expected, node.path());
  std::vector<double> values;
  if (checked_size(shape, node.path()) > 0) flatten_literal(data, shape, 0, values);
  HostTensor out = allocate_generated(node, dtype, std::move(shape));
  std::size_t at = 0;
  out.fill([&](const auto&) { return values[at++]; });
  return out;
}

}  // namespace plait::oracle
