// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Which requests of a step read a common prefix, and whether reading it once for all of them (a
// prefix view and a suffix view, merged) costs less than once each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace plait::serve {

/// What the rule needs of the attention shape.
struct ComposeCosts {
  std::int32_t group_size = 1;          // fused rows per query row
  std::int32_t query_tile = 64;         // fused rows that share one pass over K and V
  std::int64_t kv_bytes_per_token = 0;  // K and V of one KV head
  std::int64_t state_bytes = 0;         // one partial state of one fused row, o and lse in f32
  std::int32_t block_tokens = 512;
};

/// Bytes saved minus bytes added, per KV head, when `num_sharers` requests with `rows` query rows
/// in all read `prefix_tokens` through one row block. Flat, each sharer's tiles read the prefix on
/// their own; composed, the tiles of all rows together do, and every row writes and reads back two
/// partial states. Starting an item weighs like kItemBytes.
std::int64_t compose_gain(const ComposeCosts& costs, std::int64_t flat_tiles, std::int64_t rows,
                          std::int64_t prefix_tokens);

struct PrefixGroup {
  std::int32_t begin = 0;  // sharers are order[begin .. end)
  std::int32_t end = 0;
  std::int32_t blocks = 0;  // prefix length in cache blocks
};

struct Candidate {
  std::int32_t rows = 0;
  std::span<const std::int32_t> blocks;  // cache blocks under its first tokens
};

/// Finds the groups that pay. Reuses its memory; deterministic.
class Composer {
 public:
  explicit Composer(const ComposeCosts& costs) : costs_(costs) {}

  /// Fills `order` (a permutation of the candidates, sharers adjacent and first) and `groups`.
  /// `num_block_ids` bounds the ids in Candidate::blocks. Linear in the listed blocks per group
  /// found, at most kMaxGroups of them.
  void compose(std::span<const Candidate> candidates, std::int32_t num_block_ids);

  std::span<const std::int32_t> order() const noexcept { return order_; }
  std::span<const PrefixGroup> groups() const noexcept { return groups_; }

  static constexpr std::int32_t kMaxGroups = 32;

 private:
  struct Node {
    std::int32_t sharers = 0;
    std::int32_t rows = 0;
    std::int32_t flat_tiles = 0;
  };
  void count(const Candidate& candidate, std::int32_t sign);
  std::int32_t tiles(std::int32_t rows) const;

  ComposeCosts costs_;
  std::vector<Node> nodes_;  // by block id; a block id stands for the whole prefix up to it
  std::vector<std::int32_t> order_;
  std::vector<PrefixGroup> groups_;
  std::vector<std::int32_t> open_;  // candidates that may still join a group
};

}  // namespace plait::serve
