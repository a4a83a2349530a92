// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/spread_output.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "plait/error.h"

namespace plait::check {

using oracle::HostTensor;

SpreadOutput::SpreadOutput(OperandMemory& memory, std::string name, const Tensor& plain)
    : memory_(&memory), name_(std::move(name)) {
  std::vector<std::int64_t> shape{plain.shape[1], plain.shape[0] + 1};
  // A multiple of 16 bytes: rows stay as aligned as families want them.
  if (plain.rank == 3) shape.push_back(plain.shape[2] + 16);
  all_ = memory.output(plain.dtype, shape);
  view_ = all_;
  view_.shape = plain.shape;
  std::swap(view_.strides[0], view_.strides[1]);
}

HostTensor SpreadOutput::fetch() const {
  HostTensor all = memory_->fetch(all_);
  HostTensor out = HostTensor::zeros(
      view_.dtype, {view_.shape.begin(), view_.shape.begin() + view_.rank}, "output");
  const std::int64_t size = size_of(view_.dtype);
  const std::int64_t row_bytes = (view_.rank == 3 ? view_.shape[2] : 1) * size;
  auto* from = static_cast<std::byte*>(all.storage->data());
  auto* to = static_cast<std::byte*>(out.storage->data());
  for (std::int64_t row = 0; row < view_.shape[0]; ++row) {
    for (std::int64_t head = 0; head < view_.shape[1]; ++head, to += row_bytes) {
      std::byte* place = from + (row * view_.strides[0] + head * view_.strides[1]) * size;
      std::memcpy(to, place, static_cast<std::size_t>(row_bytes));
      std::memset(place, 0xFF, static_cast<std::size_t>(row_bytes));
    }
  }
  const std::byte* end = from + all.storage->bytes();
  const std::byte* written = std::find_if(from, from + all.storage->bytes(),
                                          [](std::byte b) { return b != std::byte{0xFF}; });
  if (written != end) {
    throw Error(ErrorCode::kInternal, name_,
                "a byte that was written between rows, " + std::to_string(written - from) +
                    " bytes into the memory of strides " + std::to_string(view_.strides[0]) +
                    " and " + std::to_string(view_.strides[1]),
                "nothing written but elements");
  }
  return out;
}

}  // namespace plait::check
