// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace plait::serve {

/// Ids of the free pages of a KV pool. Last in, first out: after some traffic the pages of a
/// request are scattered, as they are in a server.
class PagePool {
 public:
  explicit PagePool(std::int32_t num_pages);

  std::int32_t num_pages() const noexcept { return num_pages_; }
  std::int64_t num_free() const noexcept { return static_cast<std::int64_t>(free_.size()); }

  /// Appends `count` page ids to `pages`; takes none and returns false if fewer are free.
  bool take(std::int64_t count, std::vector<std::int32_t>& pages);
  /// Returns pages; throws Error{kInternal} if one is already free (a page with two owners).
  void give(std::span<const std::int32_t> pages);

 private:
  std::int32_t num_pages_;
  std::vector<std::int32_t> free_;
  std::vector<bool> is_free_;
};

}  // namespace plait::serve
