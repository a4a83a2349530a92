// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/page_pool.h"

#include <string>

#include "plait/error.h"

namespace plait::serve {

PagePool::PagePool(std::int32_t num_pages)
    : num_pages_(num_pages), is_free_(static_cast<std::size_t>(num_pages), true) {
  free_.reserve(static_cast<std::size_t>(num_pages));
  for (std::int32_t page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

bool PagePool::take(std::int64_t count, std::vector<std::int32_t>& pages) {
  if (count > num_free()) return false;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t page = free_.back();
    free_.pop_back();
    is_free_[static_cast<std::size_t>(page)] = false;
    pages.push_back(page);
  }
  return true;
}

void PagePool::give(std::span<const std::int32_t> pages) {
  for (const std::int32_t page : pages) {
    if (page < 0 || page >= num_pages_ || is_free_[static_cast<std::size_t>(page)]) {
      throw Error(ErrorCode::kInternal, "page", std::to_string(page), "a page that is in use");
    }
    is_free_[static_cast<std::size_t>(page)] = true;
    free_.push_back(page);
  }
}

}  // namespace plait::serve
