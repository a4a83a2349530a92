// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/kv_store.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "plait/error.h"

namespace plait::serve {

HostBuffer::HostBuffer(std::int64_t bytes, const char* what) : bytes_(bytes) {
  data_.reset(static_cast<std::byte*>(
      std::calloc(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), 1)));
  if (data_ == nullptr) {
    throw Error(ErrorCode::kOutOfMemory, what, std::to_string(bytes) + " bytes",
                "an allocation that the host can serve (a smaller --pool-tokens)");
  }
}

void HostBuffer::Free::operator()(std::byte* memory) const noexcept { std::free(memory); }

KvStore::KvStore(const Geometry& geometry, DType dtype, std::int32_t num_pages,
                 std::int32_t page_size, bool rotated, bool unrotated)
    : dtype_(dtype),
      num_pages_(num_pages),
      page_size_(page_size),
      heads_(geometry.num_kv_heads),
      dim_(geometry.head_dim) {
  const std::int64_t bytes = num_pages_ * page_size_ * heads_ * dim_ * size_of(dtype);
  for (std::int32_t layer = 0; layer < geometry.num_layers(); ++layer) {
    if (rotated) rotated_.emplace_back(bytes, "key cache");
    if (unrotated) unrotated_.emplace_back(bytes, "key cache");
    values_.emplace_back(bytes, "value cache");
  }
}

Tensor KvStore::pool(const std::vector<HostBuffer>& layers, std::int32_t layer) const {
  return Tensor::contiguous(layers[static_cast<std::size_t>(layer)].data(), dtype_,
                            {num_pages_, page_size_, heads_, dim_});
}

Tensor KvStore::k(std::int32_t layer, bool rotated) const {
  return pool(rotated ? rotated_ : unrotated_, layer);
}

Tensor KvStore::v(std::int32_t layer) const { return pool(values_, layer); }

}  // namespace plait::serve
