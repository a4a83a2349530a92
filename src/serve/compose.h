// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Which stretches of shared prefixes the requests of a step read together (a level of views for
// each stretch on a request's path, merged with its own keys), so that the step costs least.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/device/plan_layout.h"
#include "plait/batch.h"
#include "plan/planner.h"
#include "serve/prefix_tree.h"

namespace plait::serve {

/// What the rule needs of the attention shape and of who computes it.
struct ComposeCosts {
  PlanTarget target;            // tile classes, their costs and the workers that share them
  std::int32_t group_size = 1;  // fused rows per query row
  std::int32_t num_kv_heads = 1;
  std::int32_t block_tokens = 512;
};

/// Members order[begin, end) read blocks [first_block, last_block) of their lists through one row
/// block, in the view of `level` (0: outermost).
struct PrefixGroup {
  std::int32_t begin = 0, end = 0;
  std::int32_t first_block = 0, last_block = 0;
  std::int32_t level = 0;
};

/// Finds the cheapest composition by the planner's own cost model: for every node of the tree of
/// prefixes, reading its stretch (and what lies above it unread) once for all members against
/// leaving it to its parts. Costs are those of one KV head; every row pays for a partial state at
/// each level and at its own keys. Reuses its memory; deterministic.
class Composer {
 public:
  /// Views of a composed batch at most: shared levels and the requests' own keys. Each level costs
  /// room for a partial state of every query row, used or not.
  static constexpr std::int32_t kMaxSharedLevels = 3;
  static_assert(kMaxSharedLevels < kMaxViews);

  explicit Composer(const ComposeCosts& costs) : costs_(costs) {}

  /// Fills `order` (a permutation of the candidates, sharers adjacent and first) and `groups` (by
  /// level, then by place). Without a group that pays the order is the given one.
  void compose(std::span<const Candidate> candidates);

  std::span<const std::int32_t> order() const noexcept { return order_; }
  std::span<const PrefixGroup> groups() const noexcept { return groups_; }
  std::int32_t num_levels() const noexcept {
    return groups_.empty() ? 0 : groups_.back().level + 1;
  }
  /// Blocks that candidate order()[position] reads through groups.
  std::int32_t blocks_read(std::int32_t position) const {
    return blocks_read_[static_cast<std::size_t>(position)];
  }

 private:
  static constexpr std::int32_t kLevels = kMaxSharedLevels + 1;  // cuts above a node: 0 .. max
  /// Branchings that are looked at on the way to a request; beyond, stretches count as its own.
  static constexpr std::int32_t kMaxDepth = 15;
  /// Composition has to save this part of the step, 1 / kLeastGain.
  static constexpr std::int64_t kLeastGain = 64;

  using ClassCosts = std::array<std::int64_t, device::kMaxClasses>;

  template <class Add>
  void for_tiles(std::int32_t rows, std::int64_t tokens, bool state, Add add) const;
  std::int64_t read_cost(std::int32_t rows, std::int64_t tokens, bool state) const;
  void add_read(std::int32_t rows, std::int64_t tokens, bool state, ClassCosts& costs) const;
  std::int64_t own_tokens(const Candidate& candidate, std::int32_t blocks) const;
  std::int64_t own_cost(const Candidate& candidate, std::int32_t blocks) const;
  std::int64_t longest(const ClassCosts& costs) const;
  void collect(std::span<const Candidate> candidates);
  void solve(std::span<const Candidate> candidates);
  void choose(std::span<const Candidate> candidates);
  bool pays(std::span<const Candidate> candidates) const;
  void leave_flat(std::span<const Candidate> candidates);

  /// A node's costs by what its rows have read already: up to its ancestor k - 1 (k = 0: nothing),
  /// through `cuts` levels.
  std::int64_t& cost(std::size_t node, std::int32_t k, std::int32_t cuts) {
    return table_[offset_[node] + static_cast<std::size_t>(k * kLevels + cuts)];
  }

  ComposeCosts costs_;
  PrefixTree tree_;
  std::vector<std::int32_t> members_;  // candidates that may share
  std::vector<std::int32_t> deepest_;  // node of each place of the tree's order, -1: none
  std::vector<std::size_t> offset_;    // of each node in table_
  std::vector<std::int64_t> table_;
  std::vector<bool> shared_;               // like table_: the node's stretch is read together
  std::vector<std::int32_t> read_, cuts_;  // of each node, the choice that applies below it
  std::vector<bool> taken_;                // of each candidate: a group has it
  std::vector<std::int32_t> order_;
  std::vector<PrefixGroup> groups_;
  std::vector<std::int32_t> blocks_read_;
};

}  // namespace plait::serve
