// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/prefix_tree.h"

#include <algorithm>

namespace plait::serve {

/// How many leading blocks two candidates have in common.
std::int32_t PrefixTree::common(std::int32_t a, std::int32_t b) const {
  const auto x = candidates_[static_cast<std::size_t>(a)].blocks;
  const auto y = candidates_[static_cast<std::size_t>(b)].blocks;
  std::size_t low = 0;
  std::size_t high = std::min(x.size(), y.size());
  if (high == 0 || x[0] != y[0]) return 0;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (x[middle] == y[middle]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return static_cast<std::int32_t>(low);
}

void PrefixTree::add_nodes(std::int32_t begin, std::int32_t end, std::int32_t first_block,
                           std::int32_t parent, std::int32_t max_depth) {
  const std::int32_t depth = parent < 0 ? 0 : nodes_[static_cast<std::size_t>(parent)].depth + 1;
  if (depth > max_depth) return;
  const auto at = [&](std::int32_t i) { return order_[static_cast<std::size_t>(i)]; };
  const auto size = [&](std::int32_t i) {
    return std::ssize(candidates_[static_cast<std::size_t>(at(i))].blocks);
  };
  // A list that ends at first_block sorts before those that go on.
  while (begin < end && size(begin) <= first_block) ++begin;
  while (begin < end) {
    const auto block = static_cast<std::size_t>(first_block);
    std::int32_t stop = begin + 1;
    const std::int32_t id = candidates_[static_cast<std::size_t>(at(begin))].blocks[block];
    while (stop < end && candidates_[static_cast<std::size_t>(at(stop))].blocks[block] == id) {
      ++stop;
    }
    if (stop - begin >= 2) {
      const std::int32_t last_block = common(at(begin), at(stop - 1));
      const auto node = static_cast<std::int32_t>(nodes_.size());
      nodes_.push_back({begin, stop, first_block, last_block, parent, depth});
      add_nodes(begin, stop, last_block, node, max_depth);
    }
    begin = stop;
  }
}

void PrefixTree::build(std::span<const Candidate> candidates, std::span<const std::int32_t> members,
                       std::int32_t max_depth) {
  candidates_ = candidates;
  nodes_.clear();
  order_.assign(members.begin(), members.end());
  std::sort(order_.begin(), order_.end(), [&](std::int32_t a, std::int32_t b) {
    const auto left = candidates_[static_cast<std::size_t>(a)].blocks;
    const auto right = candidates_[static_cast<std::size_t>(b)].blocks;
    const auto same = static_cast<std::size_t>(common(a, b));
    const bool ends = same == left.size() || same == right.size();
    if (!ends) return left[same] < right[same];
    return left.size() != right.size() ? left.size() < right.size() : a < b;
  });
  add_nodes(0, static_cast<std::int32_t>(order_.size()), 0, -1, max_depth);
}

}  // namespace plait::serve
