// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/kv_store.h"

namespace plait::serve {

KvStore::KvStore(Memory& memory, const Geometry& geometry, DType dtype, std::int32_t num_pages,
                 std::int32_t page_size, bool rotated, bool unrotated)
    : device_(memory.device()),
      dtype_(dtype),
      num_pages_(num_pages),
      page_size_(page_size),
      heads_(geometry.num_kv_heads),
      dim_(geometry.head_dim) {
  const std::int64_t bytes = num_pages_ * page_size_ * heads_ * dim_ * size_of(dtype);
  for (std::int32_t layer = 0; layer < geometry.num_layers(); ++layer) {
    if (rotated) rotated_.push_back(memory.allocate(bytes, "key cache"));
    if (unrotated) unrotated_.push_back(memory.allocate(bytes, "key cache"));
    values_.push_back(memory.allocate(bytes, "value cache"));
  }
}

Tensor KvStore::pool(const std::vector<std::shared_ptr<std::byte>>& layers,
                     std::int32_t layer) const {
  return Tensor::contiguous(layers[static_cast<std::size_t>(layer)].get(), dtype_,
                            {num_pages_, page_size_, heads_, dim_}, device_);
}

Tensor KvStore::k(std::int32_t layer, bool rotated) const {
  return pool(rotated ? rotated_ : unrotated_, layer);
}

Tensor KvStore::v(std::int32_t layer) const { return pool(values_, layer); }

}  // namespace plait::serve
