// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Finished prompt blocks, kept after their request ends so that a later request with the same
// prefix reads them instead of computing them again.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "serve/page_pool.h"

namespace plait::serve {

/// Blocks are reference counted. One that nobody references stays cached, in order of last use,
/// until its pages are needed. Every operation is O(1) (O(pages per block) where pages move).
class PrefixCache {
 public:
  PrefixCache(PagePool& pool, std::int32_t pages_per_block);

  /// The block of `key`, or -1.
  std::int32_t find(std::uint64_t key) const;
  void acquire(std::int32_t block);
  /// The caller gives up one reference. Release the deepest block of a prefix first: then leaves
  /// are evicted before the blocks that lead to them.
  void release(std::int32_t block);
  /// Takes ownership of `pages` under `key`, with one reference for the caller.
  /// Precondition: find(key) < 0 and pages.size() == pages_per_block.
  std::int32_t insert(std::uint64_t key, std::span<const std::int32_t> pages);

  std::span<const std::int32_t> pages(std::int32_t block) const;
  bool is_referenced(std::int32_t block) const;
  std::int64_t num_evictable_pages() const noexcept { return num_idle_ * pages_per_block_; }
  std::int64_t num_blocks() const noexcept { return static_cast<std::int64_t>(by_key_.size()); }
  std::int64_t num_evictions() const noexcept { return num_evictions_; }

  /// Evicts least recently used idle blocks until the pool has `count` free pages; false (and
  /// nothing evicted) if that is impossible.
  bool make_room(std::int64_t count);

 private:
  struct Block {
    std::uint64_t key = 0;
    std::int32_t references = 0;
    std::int32_t older = -1;  // neighbours in the list of idle blocks
    std::int32_t newer = -1;
  };

  Block& at(std::int32_t block) { return blocks_[static_cast<std::size_t>(block)]; }
  void unlink(std::int32_t block);

  PagePool& pool_;
  std::int32_t pages_per_block_;
  std::vector<Block> blocks_;
  std::vector<std::int32_t> block_pages_;  // [blocks, pages_per_block]
  std::vector<std::int32_t> unused_;       // slots of blocks_ without a block
  std::unordered_map<std::uint64_t, std::int32_t> by_key_;
  std::int32_t oldest_ = -1;
  std::int32_t newest_ = -1;
  std::int64_t num_idle_ = 0;
  std::int64_t num_evictions_ = 0;
};

}  // namespace plait::serve
