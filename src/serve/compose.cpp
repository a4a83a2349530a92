// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/compose.h"

#include <algorithm>

namespace plait::serve {
namespace {

constexpr std::int64_t kItemBytes = 4096;

}  // namespace

std::int64_t compose_gain(const ComposeCosts& costs, std::int64_t flat_tiles, std::int64_t rows,
                          std::int64_t prefix_tokens) {
  const std::int64_t fused = rows * costs.group_size;
  const std::int64_t composed_tiles = (fused + costs.query_tile - 1) / costs.query_tile;
  const std::int64_t saved =
      (flat_tiles - composed_tiles) * prefix_tokens * costs.kv_bytes_per_token;
  const std::int64_t states = fused * 2 * (2 * costs.state_bytes);  // two each, written and read
  return saved - states - (composed_tiles + 1) * kItemBytes;
}

std::int32_t Composer::tiles(std::int32_t rows) const {
  return (rows * costs_.group_size + costs_.query_tile - 1) / costs_.query_tile;
}

void Composer::count(const Candidate& candidate, std::int32_t sign) {
  for (const std::int32_t block : candidate.blocks) {
    Node& node = nodes_[static_cast<std::size_t>(block)];
    node.sharers += sign;
    node.rows += sign * candidate.rows;
    node.flat_tiles += sign * tiles(candidate.rows);
  }
}

void Composer::compose(std::span<const Candidate> candidates, std::int32_t num_block_ids) {
  order_.clear();
  groups_.clear();
  open_.clear();
  if (nodes_.size() < static_cast<std::size_t>(num_block_ids)) {
    nodes_.resize(static_cast<std::size_t>(num_block_ids));
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    // A chunk that fills tiles of its own gains nothing from company.
    const Candidate& candidate = candidates[i];
    if (!candidate.blocks.empty() && candidate.rows * costs_.group_size < costs_.query_tile) {
      open_.push_back(static_cast<std::int32_t>(i));
      count(candidate, 1);
    }
  }
  const auto at = [&](std::int32_t i) -> const Candidate& {
    return candidates[static_cast<std::size_t>(i)];
  };
  const auto shares = [&](std::int32_t i, std::int32_t block, std::int32_t depth) {
    return std::ssize(at(i).blocks) > depth &&
           at(i).blocks[static_cast<std::size_t>(depth)] == block;
  };
  std::vector<std::int32_t>& open = open_;
  while (std::ssize(groups_) < kMaxGroups) {
    std::int64_t best_gain = 0;
    std::int32_t best_block = -1;
    std::int32_t best_depth = 0;
    for (const std::int32_t i : open) {
      for (std::int32_t depth = 0; depth < std::ssize(at(i).blocks); ++depth) {
        const std::int32_t block = at(i).blocks[static_cast<std::size_t>(depth)];
        const Node& node = nodes_[static_cast<std::size_t>(block)];
        if (node.sharers < 2) break;  // deeper ones have no more
        const std::int64_t gain = compose_gain(costs_, node.flat_tiles, node.rows,
                                               std::int64_t{depth + 1} * costs_.block_tokens);
        if (gain > best_gain) {
          best_gain = gain;
          best_block = block;
          best_depth = depth;
        }
      }
    }
    if (best_block < 0) break;
    PrefixGroup group;
    group.begin = static_cast<std::int32_t>(order_.size());
    group.blocks = best_depth + 1;
    for (const std::int32_t i : open) {
      if (shares(i, best_block, best_depth)) {
        order_.push_back(i);
        count(at(i), -1);
      }
    }
    group.end = static_cast<std::int32_t>(order_.size());
    std::erase_if(open, [&](std::int32_t i) { return shares(i, best_block, best_depth); });
    groups_.push_back(group);
  }
  for (const std::int32_t i : open) count(at(i), -1);
  // The rest keeps its order. `order_` is short; a mark per candidate would cost more memory
  // traffic than this search in the common case of no group at all.
  const auto grouped = std::vector<std::int32_t>(order_.begin(), order_.end());
  if (grouped.empty()) {
    for (std::int32_t i = 0; i < std::ssize(candidates); ++i) order_.push_back(i);
    return;
  }
  std::vector<bool> taken(candidates.size(), false);
  for (const std::int32_t i : grouped) taken[static_cast<std::size_t>(i)] = true;
  for (std::int32_t i = 0; i < std::ssize(candidates); ++i) {
    if (!taken[static_cast<std::size_t>(i)]) order_.push_back(i);
  }
}

}  // namespace plait::serve
