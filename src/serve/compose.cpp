// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/compose.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "plan/bounds.h"
#include "plan/task.h"
#include "plan/workers.h"

namespace plait::serve {

/// One KV head's tiles of `tokens` keys for `rows` query rows, cut as the planner does:
/// add(tile class, cost).
template <class Add>
void Composer::for_tiles(std::int32_t rows, std::int64_t tokens, bool state, Add add) const {
  const PlanTarget& target = costs_.target;
  for (std::int32_t left = rows * costs_.group_size; left > 0;) {
    std::size_t c = 0;
    while (c + 1 < static_cast<std::size_t>(target.num_classes) &&
           target.classes[c].q_tile < left) {
      ++c;
    }
    const std::int32_t fused = std::min(left, target.classes[c].q_tile);
    add(c, planning::item_cost(target.classes[c], tokens, state ? fused : 0));
    left -= fused;
  }
}

std::int64_t Composer::read_cost(std::int32_t rows, std::int64_t tokens, bool state) const {
  std::int64_t sum = 0;
  for_tiles(rows, tokens, state, [&](std::size_t, std::int64_t cost) { sum += cost; });
  return sum;
}

void Composer::add_read(std::int32_t rows, std::int64_t tokens, bool state,
                        ClassCosts& costs) const {
  for_tiles(rows, tokens, state, [&](std::size_t c, std::int64_t cost) { costs[c] += cost; });
}

/// Keys that a candidate reads alone once `blocks` of its list are read.
std::int64_t Composer::own_tokens(const Candidate& candidate, std::int32_t blocks) const {
  return candidate.kv_len - std::int64_t{blocks} * costs_.block_tokens;
}

std::int64_t Composer::own_cost(const Candidate& candidate, std::int32_t blocks) const {
  return read_cost(candidate.rows, own_tokens(candidate, blocks), blocks > 0);
}

/// What the workers with most to do get at least, in all: those of one tile class, where classes
/// have workers of their own. They come in teams of one worker per head, as level cutting hands
/// them out, so a class with little to do may take more than its part.
std::int64_t Composer::longest(const ClassCosts& costs) const {
  const PlanTarget& target = costs_.target;
  std::int64_t sum = 0;
  std::int32_t used = 0;
  for (const std::int64_t cost : costs) {
    sum += cost;
    used += cost > 0 ? 1 : 0;
  }
  if (target.shared_workers || used <= 1) return sum;
  std::int32_t units =
      target.num_workers / planning::team_heads(costs_.num_kv_heads, target.num_workers);
  if (units < used) units = target.num_workers;
  if (units < used) return sum;
  std::array<std::int32_t, device::kMaxClasses> shares{};
  planning::share_workers(target.num_classes, units, costs, shares);
  std::int64_t longest = 0;
  for (std::size_t c = 0; c < costs.size(); ++c) {
    if (costs[c] > 0) longest = std::max(longest, costs[c] / shares[c]);
  }
  return longest * units;
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

/// Top down: the groups of the cheapest choice, and the order that makes their members adjacent.
void Composer::choose(std::span<const Candidate> candidates) {
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
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!taken_[i]) order_.push_back(static_cast<std::int32_t>(i));
  }
  blocks_read_.resize(order_.size(), 0);
}

/// A few keys saved do not repay more views and more items, nor, which the sum of costs does not
/// show, another split of the workers between tile classes.
bool Composer::pays(std::span<const Candidate> candidates) const {
  ClassCosts flat{};
  ClassCosts composed{};
  for (std::size_t place = 0; place < order_.size(); ++place) {
    const Candidate& candidate = candidates[static_cast<std::size_t>(order_[place])];
    const std::int32_t read = blocks_read_[place];
    add_read(candidate.rows, own_tokens(candidate, 0), false, flat);
    add_read(candidate.rows, own_tokens(candidate, read), read > 0, composed);
  }
  for (const PrefixGroup& group : groups_) {
    std::int32_t rows = 0;
    for (std::int32_t i = group.begin; i < group.end; ++i) {
      rows += candidates[static_cast<std::size_t>(order_[static_cast<std::size_t>(i)])].rows;
    }
    add_read(rows, std::int64_t{group.last_block - group.first_block} * costs_.block_tokens, true,
             composed);
  }
  std::int64_t before = 0;
  for (const std::int64_t cost : flat) before += cost;
  return (before - longest(composed)) * kLeastGain > before;
}

void Composer::leave_flat(std::span<const Candidate> candidates) {
  groups_.clear();
  order_.resize(candidates.size());
  std::iota(order_.begin(), order_.end(), 0);
  blocks_read_.assign(candidates.size(), 0);
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
    choose(candidates);
  }
  if (groups_.empty() || !pays(candidates)) leave_flat(candidates);
}

}  // namespace plait::serve
