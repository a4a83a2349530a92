// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Which requests of a step hold the same cached blocks: a tree whose nodes are stretches of blocks
// that several requests have in common.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace plait::serve {

/// One request of a step, as composition sees it.
struct Candidate {
  std::int32_t rows = 0;
  std::int32_t kv_len = 0;
  std::span<const std::int32_t> blocks;  // cache blocks under its first tokens
};

/// The members of a node, order()[begin, end), share the blocks [first_block, last_block) of their
/// lists (and all before them), and not all of them share the next.
struct PrefixNode {
  std::int32_t begin = 0, end = 0;
  std::int32_t first_block = 0, last_block = 0;
  std::int32_t parent = -1;
  std::int32_t depth = 0;  // ancestors
};

/// Rebuilt every step in its own memory. An id of a cache block stands for the whole prefix up to
/// it: two lists that agree at one place agree at all before.
class PrefixTree {
 public:
  /// `members`: indices of the candidates to arrange. Nodes have at least two members each and come
  /// in depth-first order, none deeper than `max_depth`. O(n log n log blocks) for n members.
  void build(std::span<const Candidate> candidates, std::span<const std::int32_t> members,
             std::int32_t max_depth);

  std::span<const PrefixNode> nodes() const noexcept { return nodes_; }
  /// The members, those of a node adjacent.
  std::span<const std::int32_t> order() const noexcept { return order_; }

 private:
  std::int32_t common(std::int32_t a, std::int32_t b) const;
  void add_nodes(std::int32_t begin, std::int32_t end, std::int32_t first_block,
                 std::int32_t parent, std::int32_t max_depth);

  std::span<const Candidate> candidates_;
  std::vector<PrefixNode> nodes_;
  std::vector<std::int32_t> order_;
};

}  // namespace plait::serve
