// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plait/tensor.h"

namespace plait::oracle {

// Products of two 64-bit figures from a file, before they are compared with a limit.
__extension__ typedef __int128 Int128;

/// Zero-initialised host memory, 64-byte aligned. Pages that nobody writes cost no memory, so a
/// pool of many gigabytes with a few live pages is cheap.
class Buffer {
 public:
  /// Throws Error{kOutOfMemory} naming `field` when the machine has not that much memory.
  Buffer(std::int64_t bytes, std::string_view field);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() noexcept { return data_; }
  const void* data() const noexcept { return data_; }
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  void* raw_ = nullptr;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// A strided view into a shared buffer: what a TENSOR of a problem file becomes. Two tensors that
/// alias (K and V of one latent cache) share `storage`.
struct HostTensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements
  std::int64_t offset = 0;            // in elements from the start of `storage`
  std::shared_ptr<Buffer> storage;

  std::int64_t size() const noexcept;
  /// Element position in the storage of a multi-index with as many entries as there are axes.
  std::int64_t at(const std::int64_t* index) const noexcept;
  double load(std::int64_t element) const noexcept;
  /// The public view. Its memory lives as long as `storage`.
  Tensor view() const;

  /// A row-major tensor of zeros.
  static HostTensor zeros(DType dtype, std::vector<std::int64_t> shape, std::string_view field);
  /// Fills every element, in row-major order, with `value(index)`, rounded once.
  template <class Function>
  void fill(Function&& value);
};

/// Number of elements; throws Error{kInvalidArgument} naming `field` for a negative extent or a
/// product beyond 2^47.
std::int64_t checked_size(const std::vector<std::int64_t>& shape, std::string_view field);

/// "[3, 8, 64]".
std::string shape_text(const std::vector<std::int64_t>& shape);

/// Throws Error naming `field` unless every element of the view lies in [0, available).
void check_reach(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides,
                 std::int64_t offset, std::int64_t available, std::string_view field);

std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& shape);

}  // namespace plait::oracle

#include "core/convert.h"

namespace plait::oracle {

template <class Function>
void HostTensor::fill(Function&& value) {
  const std::int64_t count = size();
  std::vector<std::int64_t> index(shape.size(), 0);
  for (std::int64_t n = 0; n < count; ++n) {
    store_element(dtype, storage->data(), at(index.data()), value(index));
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      if (++index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
  }
}

}  // namespace plait::oracle
