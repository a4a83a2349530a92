// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Which keys a query row may read, where they lie in memory, and which it sees: the access side of
// the mathematics, written out one key at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "oracle/problem.h"

namespace plait::oracle {

struct Key {
  std::int64_t k_element = 0;  // storage element of its first dimension
  std::int64_t v_element = 0;
  std::int64_t position = 0;  // logical position j
  std::int64_t rope_position = 0;
  std::int64_t mask_column = 0;   // column of the custom mask; -1: an outer level, always visible
  std::int64_t block_entry = -1;  // BSR: the listed block it belongs to, and its column there
  std::int64_t block_column = 0;
};

/// Every key listed for query row `row` (0-based within the request) and `kv_head`, visible or
/// not, in listed order.
std::vector<Key> listed_keys(const Problem& problem, std::int64_t request, std::int64_t row,
                             std::int64_t kv_head);

/// Rows that `listed_keys` treats alike: the half-open range around `row`.
std::pair<std::int64_t, std::int64_t> rows_alike(const Problem& problem, std::int64_t request,
                                                 std::int64_t row);

/// pos_i of query row `row`.
std::int64_t query_position(const Problem& problem, std::int64_t request, std::int64_t row);

/// Step 5 of docs/math.md: the mask.
bool is_visible(const Problem& problem, std::int64_t request, std::int64_t row, const Key& key);

/// Rope position of query row `row`.
std::int64_t query_rope_position(const Problem& problem, std::int64_t request, std::int64_t row);

/// Angular frequency of pair `pair` (0 .. rotary_dim/2 - 1), after scaling.
double rope_frequency(const RopeOptions& rope, std::int64_t pair);

}  // namespace plait::oracle
