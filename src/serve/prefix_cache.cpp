// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/prefix_cache.h"

#include <algorithm>

namespace plait::serve {

PrefixCache::PrefixCache(PagePool& pool, std::int32_t pages_per_block)
    : pool_(pool), pages_per_block_(pages_per_block) {}

std::int32_t PrefixCache::find(std::uint64_t key) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? -1 : it->second;
}

void PrefixCache::unlink(std::int32_t block) {
  Block& b = at(block);
  (b.older >= 0 ? at(b.older).newer : oldest_) = b.newer;
  (b.newer >= 0 ? at(b.newer).older : newest_) = b.older;
  b.older = b.newer = -1;
  --num_idle_;
}

void PrefixCache::acquire(std::int32_t block) {
  if (at(block).references++ == 0) unlink(block);
}

void PrefixCache::release(std::int32_t block) {
  Block& b = at(block);
  if (--b.references > 0) return;
  b.older = newest_;
  (newest_ >= 0 ? at(newest_).newer : oldest_) = block;
  newest_ = block;
  ++num_idle_;
}

std::int32_t PrefixCache::insert(std::uint64_t key, std::span<const std::int32_t> pages) {
  std::int32_t block = 0;
  if (unused_.empty()) {
    block = static_cast<std::int32_t>(blocks_.size());
    blocks_.emplace_back();
    block_pages_.resize(blocks_.size() * static_cast<std::size_t>(pages_per_block_));
  } else {
    block = unused_.back();
    unused_.pop_back();
  }
  at(block) = Block{.key = key, .references = 1};
  std::copy(pages.begin(), pages.end(),
            block_pages_.begin() + static_cast<std::ptrdiff_t>(block) * pages_per_block_);
  by_key_.emplace(key, block);
  return block;
}

std::span<const std::int32_t> PrefixCache::pages(std::int32_t block) const {
  return std::span(block_pages_)
      .subspan(static_cast<std::size_t>(block) * static_cast<std::size_t>(pages_per_block_),
               static_cast<std::size_t>(pages_per_block_));
}

bool PrefixCache::is_referenced(std::int32_t block) const {
  return blocks_[static_cast<std::size_t>(block)].references > 0;
}

bool PrefixCache::make_room(std::int64_t count) {
  if (pool_.num_free() + num_evictable_pages() < count) return false;
  while (pool_.num_free() < count) {
    const std::int32_t block = oldest_;
    unlink(block);
    by_key_.erase(at(block).key);
    pool_.give(pages(block));
    unused_.push_back(block);
    ++num_evictions_;
  }
  return true;
}

}  // namespace plait::serve
