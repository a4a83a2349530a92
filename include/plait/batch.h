// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What changes every step, as counts: requests and the views through which they read the KV pool.
// Page ids are not here; they are operands of a run.
#pragma once

#include <cstdint>
#include <span>

namespace plait {

inline constexpr int kMaxViews = 8;

/// A block-sparse matrix over (query rows x KV pages). Row block r covers query rows
/// [row_indptr[r], row_indptr[r+1]) and reads the pages page_indptr[r] .. page_indptr[r+1]-1 of
/// this view's page-id list, in that order.
///
/// A row block may be a whole request, a part of one (BSR), or span several requests (a shared
/// prefix): then its boundaries are request boundaries.
struct View {
  std::span<const std::int32_t> row_indptr;     // [num_blocks + 1], starts at 0, ends at total_q
  std::span<const std::int32_t> page_indptr;    // [num_blocks * lists + 1], lists = num_kv_heads if
                                                // per_kv_head (block-major), else 1; ragged: tokens
  std::span<const std::int32_t> last_page_len;  // [num_blocks * lists]; 0 exactly for empty lists;
                                                // empty span for ragged
  /// Logical position of the first token of each listed page, strictly increasing without overlap
  /// within a list. Empty: pages are consecutive, and start where the outer views of the same
  /// rows end; those must end alike for all KV heads.
  std::span<const std::int32_t> positions;  // [page_indptr.back()]
  /// The positions are known on the device only (RunArgs::positions): no tile is skipped by
  /// position, and Batch::kv_len must be given. Every listed page lies within the kv_len of its
  /// requests, so no more keys are listed than that; checked mode refuses other positions.
  bool positions_at_run = false;
  bool per_kv_head = false;
};

/// One step's batch for one layer group. Views are ordered outermost first; a request's keys are
/// those of its row blocks in that order.
struct Batch {
  std::span<const std::int32_t> qo_indptr;  // [num_requests + 1]
  std::span<const View> views;
  /// Logical length of each request over all views, [num_requests]. Empty: derived from the views
  /// (sum of their token counts; with positions: last position + last_page_len).
  std::span<const std::int32_t> kv_len;
};

}  // namespace plait
