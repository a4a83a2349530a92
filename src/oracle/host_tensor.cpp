// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "oracle/host_tensor.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/environment.h"
#include "plait/error.h"

namespace plait::oracle {
namespace {

constexpr std::int64_t kMaxElements = std::int64_t{1} << 47;

// What one problem may ask for: more than the machine has would be killed, not refused. The
// environment says it where the machine does not know, as in a container.
std::int64_t memory_limit() {
  if (const std::string text = environment("PLAIT_MEMORY_LIMIT"); !text.empty()) {
    char* end = nullptr;
    errno = 0;
    const long long bytes = std::strtoll(text.c_str(), &end, 10);
    if (errno != 0 || *end != '\0' || bytes < 1) {
      throw Error(ErrorCode::kInvalidArgument, "PLAIT_MEMORY_LIMIT", text, "a number of bytes");
    }
    return bytes;
  }
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return std::int64_t{1} << 36;
  return static_cast<std::int64_t>(pages) * page;
}

}  // namespace

void require_memory(std::int64_t bytes, std::string_view field) {
  if (bytes <= memory_limit()) return;
  throw Error(ErrorCode::kOutOfMemory, std::string(field), std::to_string(bytes) + " bytes",
              "at most the " + std::to_string(memory_limit()) + " bytes of this machine");
}

Buffer::Buffer(std::int64_t bytes, std::string_view field) : bytes_(bytes) {
  require_memory(bytes, field);
  constexpr std::size_t kAlignment = 64;
  raw_ = std::calloc(1, static_cast<std::size_t>(bytes) + kAlignment);
  if (raw_ == nullptr) {
    throw Error(ErrorCode::kOutOfMemory, std::string(field), std::to_string(bytes) + " bytes",
                "an amount that the system can allocate");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(raw_);
  const std::uintptr_t aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
  data_ = static_cast<unsigned char*>(raw_) + (aligned - address);
}

Buffer::~Buffer() { std::free(raw_); }

std::int64_t HostTensor::size() const noexcept {
  std::int64_t count = 1;
  for (std::int64_t extent : shape) count *= extent;
  return count;
}

std::int64_t HostTensor::at(const std::int64_t* index) const noexcept {
  std::int64_t element = offset;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) element += index[axis] * strides[axis];
  return element;
}

double HostTensor::load(std::int64_t element) const noexcept {
  return load_element(dtype, storage->data(), element);
}

Tensor HostTensor::view() const {
  if (shape.size() > static_cast<std::size_t>(kMaxRank)) {
    throw Error(ErrorCode::kInvalidArgument, "shape", shape_text(shape),
                "at most " + std::to_string(kMaxRank) + " axes");
  }
  Tensor out;
  out.dtype = dtype;
  out.rank = static_cast<std::int32_t>(shape.size());
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    out.shape[axis] = shape[axis];
    out.strides[axis] = strides[axis];
  }
  if (storage != nullptr) {
    out.data = static_cast<unsigned char*>(storage->data()) + offset * size_of(dtype);
  }
  return out;
}

HostTensor HostTensor::zeros(DType dtype, std::vector<std::int64_t> shape, std::string_view field) {
  HostTensor out;
  out.dtype = dtype;
  const std::int64_t count = checked_size(shape, field);
  out.strides = contiguous_strides(shape);
  out.shape = std::move(shape);
  out.storage = std::make_shared<Buffer>(count * size_of(dtype), field);
  return out;
}

void HostTensor::fill_constant(double value) {
  const std::int64_t count = size();
  if (count == 0) return;
  if (strides != contiguous_strides(shape)) {
    fill([value](const auto&) { return value; });
    return;
  }
  store_element(dtype, storage->data(), offset, value);
  // Doubling copies: the filled front is copied behind itself.
  auto* bytes = static_cast<unsigned char*>(storage->data()) + offset * size_of(dtype);
  const auto total = static_cast<std::size_t>(count * size_of(dtype));
  for (auto done = static_cast<std::size_t>(size_of(dtype)); done < total;) {
    const std::size_t step = std::min(done, total - done);
    std::memcpy(bytes + done, bytes, step);
    done += step;
  }
}

std::int64_t checked_size(const std::vector<std::int64_t>& shape, std::string_view field) {
  Int128 count = 1;
  bool too_large = false;
  bool empty = false;
  for (std::int64_t extent : shape) {
    if (extent < 0) {
      throw Error(ErrorCode::kInvalidArgument, std::string(field), shape_text(shape),
                  "non-negative extents");
    }
    if (extent == 0) empty = true;
    if (!too_large) count *= extent;
    if (count > kMaxElements) too_large = true;
  }
  if (empty) return 0;
  if (too_large) {
    throw Error(ErrorCode::kInvalidArgument, std::string(field), shape_text(shape),
                "at most 2^47 elements");
  }
  return static_cast<std::int64_t>(count);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string out = "[";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (axis > 0) out += ", ";
    if (axis == 8) return out + "...]";
    out += std::to_string(shape[axis]);
  }
  return out + "]";
}

void check_reach(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides,
                 std::int64_t offset, std::int64_t available, std::string_view field) {
  if (checked_size(shape, field) == 0) {
    if (offset < 0 || offset > available) {
      throw Error(ErrorCode::kInvalidArgument, std::string(field),
                  "offset " + std::to_string(offset),
                  "an offset in 0.." + std::to_string(available));
    }
    return;
  }
  Int128 lowest = offset;
  Int128 highest = offset;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    const Int128 reach = static_cast<Int128>(shape[axis] - 1) * strides[axis];
    (reach < 0 ? lowest : highest) += reach;
  }
  if (lowest < 0 || highest >= available) {
    throw Error(ErrorCode::kInvalidArgument, std::string(field),
                "shape " + shape_text(shape) + " with strides " + shape_text(strides) +
                    " and offset " + std::to_string(offset),
                "a view within the " + std::to_string(available) + " elements of the tensor");
  }
}

std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= shape[axis] > 0 ? shape[axis] : 1;
  }
  return strides;
}

}  // namespace plait::oracle
