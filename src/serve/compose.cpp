// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/compose.h"

#include <algorithm>
#include <array>

#include "plan/task.h"

namespace plait::serve {

/// One KV head's cost of `tokens` keys for `rows` query rows, cut into tiles as the planner does.
std::int64_t Composer::read_cost(std::int32_t rows, std::int64_t tokens, bool state) const {
  const PlanTarget& target = costs_.target;
  const auto class_of = [&](std::int32_t fused) -> const TileClass& {
    std::size_t c = 0;
    while (c + 1 < static_cast<std::size_t>(target.num_classes) &&
           target.classes[c].q_tile < fused) {
      ++c;
    }
    return target.classes[c];
  };
  std::int64_t cost = 0;
  for (std::int32_t left = rows * costs_.group_size; left > 0;) {
    const TileClass& tile = class_of(left);
    const std::int32_t fused = std::min(left, tile.q_tile);
    cost += planning::item_cost(tile, tokens, state ? fused : 0);
    left -= fused;
  }
  return cost;
}

/// What a candidate reads alone once `blocks` of its list are read.
std::int64_t Composer::own_cost(const Candidate& candidate, std::int32_t blocks) const {
  const std::int64_t tokens = candidate.kv_len - std::int64_t{blocks} * costs_.block_tokens;
  return read_cost(candidate.rows, tokens, blocks > 0);
}

/// Whoever fills tiles of its own gains nothing from company.
void Composer::collect(std::span<const Candidate> candidates) {
  members_.clear();
  const auto last = static_cast<std::size_t>(costs_.target.num_classes) - 1;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    if (!candidate.blocks.empty() &&
        candidate.rows * costs_.group_size < costs_.target.classes[last].q_tile) {
      members_.push_back(static_cast<std::int32_t>(i));
    }
  }
}

/// Bottom up: what a node's members cost at least, for everything that may have been read above.
void Composer::solve(std::span<const Candidate> candidates) {
  const auto nodes = tree_.nodes();
  const auto order = tree_.order();
  deepest_.assign(order.size(), -1);
  offset_.resize(nodes.size());
  std::size_t size = 0;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    offset_[n] = size;
    size += static_cast<std::size_t>((nodes[n].depth + 2) * kLevels);
    std::fill(deepest_.begin() + nodes[n].begin, deepest_.begin() + nodes[n].end,
              static_cast<std::int32_t>(n));
  }
  table_.assign(size, 0);
  shared_.assign(size, false);
  for (std::size_t n = nodes.size(); n-- > 0;) {
    const PrefixNode& node = nodes[n];
    std::array<std::int32_t, kMaxDepth + 2> read{};  // blocks read at the end of ancestor k - 1
    std::int32_t ancestor = static_cast<std::int32_t>(n);
    for (std::int32_t k = node.depth + 1; k > 0; --k) {
      read[static_cast<std::size_t>(k)] = nodes[static_cast<std::size_t>(ancestor)].last_block;
      ancestor = nodes[static_cast<std::size_t>(ancestor)].parent;
    }
    std::int32_t rows = 0;
    for (std::int32_t i = node.begin; i < node.end; ++i) {
      const auto place = static_cast<std::size_t>(i);
      const Candidate& candidate = candidates[static_cast<std::size_t>(order[place])];
      rows += candidate.rows;
      if (deepest_[place] != static_cast<std::int32_t>(n)) continue;  // its node added it already
      for (std::int32_t k = 0; k <= node.depth + 1; ++k) {
        const std::int64_t own = own_cost(candidate, read[static_cast<std::size_t>(k)]);
        for (std::int32_t cuts = 0; cuts < kLevels; ++cuts) cost(n, k, cuts) += own;
      }
    }
    for (std::int32_t k = 0; k <= node.depth; ++k) {
      const std::int64_t tokens =
          std::int64_t{node.last_block - read[static_cast<std::size_t>(k)]} * costs_.block_tokens;
      const std::int64_t together = read_cost(rows, tokens, true);
      for (std::int32_t cuts = 0; cuts < kLevels; ++cuts) {
        std::int64_t& best = cost(n, k, cuts);
        if (cuts + 1 < kLevels) {
          const std::int64_t shared = together + cost(n, node.depth + 1, cuts + 1);
          if (shared < best) {
            best = shared;
            shared_[offset_[n] + static_cast<std::size_t>(k * kLevels + cuts)] = true;
          }
        }
        if (node.parent >= 0) cost(static_cast<std::size_t>(node.parent), k, cuts) += best;
      }
    }
  }
}

/// A few keys saved do not repay more views, more items and another split of the workers between
/// tile classes, which the sum of costs does not show.
bool Composer::pays(std::span<const Candidate> candidates) {
  std::int64_t flat = 0;
  for (const Candidate& candidate : candidates) flat += own_cost(candidate, 0);
  std::int64_t saved = 0;
  const auto nodes = tree_.nodes();
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].parent >= 0) continue;
    for (std::int32_t i = nodes[n].begin; i < nodes[n].end; ++i) {
      const std::int32_t member = tree_.order()[static_cast<std::size_t>(i)];
      saved += own_cost(candidates[static_cast<std::size_t>(member)], 0);
    }
    saved -= cost(n, 0, 0);
  }
  return saved * kLeastGain > flat;
}

/// Top down: the groups of the cheapest choice, and the order that makes their members adjacent.
void Composer::choose() {
  const auto nodes = tree_.nodes();
  read_.assign(nodes.size(), 0);
  cuts_.assign(nodes.size(), 0);
  std::int32_t shift = 0;  // from places of the tree's order to those of the result
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const PrefixNode& node = nodes[n];
    const bool top = node.parent < 0;
    const std::int32_t k = top ? 0 : read_[static_cast<std::size_t>(node.parent)];
    const std::int32_t cuts = top ? 0 : cuts_[static_cast<std::size_t>(node.parent)];
    const bool shared = shared_[offset_[n] + static_cast<std::size_t>(k * kLevels + cuts)];
    read_[n] = shared ? node.depth + 1 : k;
    cuts_[n] = cuts + (shared ? 1 : 0);
    if (!shared) continue;
    if (cuts == 0) {  // nobody outside a group of level 0 is in a deeper one
      shift = static_cast<std::int32_t>(order_.size()) - node.begin;
      for (std::int32_t i = node.begin; i < node.end; ++i) {
        const std::int32_t candidate = tree_.order()[static_cast<std::size_t>(i)];
        order_.push_back(candidate);
        taken_[static_cast<std::size_t>(candidate)] = true;
      }
      blocks_read_.resize(order_.size(), 0);
    }
    PrefixGroup group{node.begin + shift, node.end + shift, 0, node.last_block, cuts};
    group.first_block = blocks_read_[static_cast<std::size_t>(group.begin)];
    std::fill(blocks_read_.begin() + group.begin, blocks_read_.begin() + group.end,
              group.last_block);
    groups_.push_back(group);
  }
  std::stable_sort(groups_.begin(), groups_.end(),
                   [](const PrefixGroup& a, const PrefixGroup& b) { return a.level < b.level; });
}

void Composer::compose(std::span<const Candidate> candidates) {
  order_.clear();
  groups_.clear();
  blocks_read_.clear();
  taken_.assign(candidates.size(), false);
  collect(candidates);
  tree_.build(candidates, members_, kMaxDepth);
  if (!tree_.nodes().empty()) {
    solve(candidates);
    if (pays(candidates)) choose();
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!taken_[i]) order_.push_back(static_cast<std::int32_t>(i));
  }
  blocks_read_.resize(order_.size(), 0);
}

}  // namespace plait::serve
