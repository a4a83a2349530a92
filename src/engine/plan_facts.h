// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a run is checked against: the sizes that the current plan expects of each operand. Fixed
// size, so that re-planning allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plait/attention.h"
#include "plan/planner.h"

namespace plait::detail {

struct PlanFacts {
  std::int64_t total_q = 0;
  std::int64_t total_kv_len = 0;  // sum of logical kv_len
  std::int64_t mask_bytes = 0;
  std::int32_t num_views = 0;
  std::array<std::int64_t, kMaxViews> num_pages{};  // listed pages of a view; ragged: tokens
  std::array<bool, kMaxViews> has_positions{};

  /// Copies of the page lists' bounds and positions, kept in checked mode only.
  struct Lists {
    std::vector<std::int32_t> row_indptr;
    std::vector<std::int32_t> page_indptr;
    std::int32_t lists_per_block = 1;
    std::vector<std::int32_t> positions;  // empty: consecutive pages, or known at run time only
  };
  std::vector<Lists> lists;
  std::vector<std::int32_t> qo_indptr;
  std::vector<std::int32_t> kv_len;      // of each request
  std::vector<device::RowBlock> blocks;  // as kernels read them
};

/// `plan` was made for `batch`, as its group number `group`.
PlanFacts facts_of(const Batch& batch, const AttentionSpec& spec, const Plan& plan,
                   std::size_t group, bool checked);

/// Throws Error naming the first operand that does not fit `spec` and `facts`.
void validate_run(const AttentionSpec& spec, const PlanFacts& facts, const RunArgs& args,
                  Device device);

/// Refuses page ids outside [0, num_pages), naming view and entry.
void check_page_ids(std::int32_t view, std::span<const std::int32_t> ids, std::int64_t num_pages);

/// Refuses positions of listed pages that are not those of the plan; for a view whose positions the
/// plan does not know, those of pages that do not lie within the keys of their request. `brought`
/// is view `view`'s position list.
void check_positions(const PlanFacts& facts, std::int32_t page_size, std::int32_t view,
                     std::span<const std::int32_t> brought);

/// Refuses rope positions of keys by which requests that share these keys differ: the row block
/// that they share rotates a key once. `listed[v]` is view v's position list, empty for views
/// without; `rope` is RunArgs::k_rope_positions.
void check_shared_rope_positions(const PlanFacts& facts, std::int32_t page_size,
                                 std::span<const std::vector<std::int32_t>> listed,
                                 std::span<const std::int32_t> rope);

/// Refuses page lists that name a key twice for one query row. `ids[v]` is view v's page list.
void check_duplicates(const PlanFacts& facts, std::span<const std::span<const std::int32_t>> ids);

}  // namespace plait::detail
