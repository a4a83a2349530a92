// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "plait/tensor.h"

namespace plait::oracle {

// Products of two 64-bit figures from a file, before they are compared with a limit.
__extension__ typedef __int128 Int128;

/// Throws Error{kOutOfMemory} naming `field` when the machine has not that much memory.
void require_memory(std::int64_t bytes, std::string_view field);

/// Zero-initialised host memory, 64-byte aligned. Pages that nobody writes cost no memory, so a
/// pool of many gigabytes with a few live pages is cheap.
class Buffer {
 public:
  /// Throws Error{kOutOfMemory} naming `field` when the machine has not that much memory to give.
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
  /// Sets element n, in row-major order, to `value(n, index)`. Large row-major tensors are filled
  /// by several threads, so `value` must not change anything.
  template <class Function>
  void fill_by_number(const Function& value);
  /// Sets every element to one value.
  void fill_constant(double value);

 private:
  template <class Function>
  void fill_range(std::int64_t begin, std::int64_t end, const Function& value);
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
  fill_range(0, size(),
             [&](std::int64_t, const std::vector<std::int64_t>& index) { return value(index); });
}

template <class Function>
void HostTensor::fill_range(std::int64_t begin, std::int64_t end, const Function& value) {
  std::vector<std::int64_t> index(shape.size(), 0);
  std::int64_t rest = begin;
  for (std::size_t axis = shape.size(); axis-- > 0 && rest > 0;) {
    index[axis] = rest % shape[axis];
    rest /= shape[axis];
  }
  for (std::int64_t n = begin; n < end; ++n) {
    store_element(dtype, storage->data(), at(index.data()), value(n, index));
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      if (++index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
  }
}

template <class Function>
void HostTensor::fill_by_number(const Function& value) {
  constexpr std::int64_t kElementsPerThread = std::int64_t{1} << 18;
  const std::int64_t count = size();
  const std::int64_t most = strides == contiguous_strides(shape) ? count / kElementsPerThread : 1;
  const std::int64_t threads =
      std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, most > 1 ? most : 1);
  std::vector<std::thread> workers;
  for (std::int64_t t = 1; t < threads; ++t) {
    workers.emplace_back([&, t] {
      fill_range(count / threads * t, t + 1 == threads ? count : count / threads * (t + 1), value);
    });
  }
  fill_range(0, threads == 1 ? count : count / threads, value);
  for (std::thread& worker : workers) worker.join();
}

}  // namespace plait::oracle
