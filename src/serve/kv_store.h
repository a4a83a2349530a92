// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "plait/spec.h"
#include "plait/tensor.h"
#include "serve/geometry.h"
#include "serve/memory.h"

namespace plait::serve {

/// The paged K and V caches of every layer. Keys are kept rotated, unrotated, or (for an ablation
/// of rotation) both.
class KvStore {
 public:
  KvStore(Memory& memory, const Geometry& geometry, DType dtype, std::int32_t num_pages,
          std::int32_t page_size, bool rotated, bool unrotated);

  /// [num_pages, page_size, num_kv_heads, head_dim]
  Tensor k(std::int32_t layer, bool rotated) const;
  Tensor v(std::int32_t layer) const;
  bool has_k(bool rotated) const noexcept { return !(rotated ? rotated_ : unrotated_).empty(); }

 private:
  Tensor pool(const std::vector<std::shared_ptr<std::byte>>& layers, std::int32_t layer) const;

  Device device_;
  DType dtype_;
  std::int64_t num_pages_, page_size_, heads_, dim_;
  std::vector<std::shared_ptr<std::byte>> rotated_, unrotated_, values_;
};

}  // namespace plait::serve
