// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// From a batch's counts to its row blocks: everything that a batch says is checked here, once, and
// turned into the RowBlock records that planner and kernels read.
#pragma once

#include <cstdint>

#include "core/device/plan_layout.h"
#include "plait/batch.h"
#include "plait/spec.h"

namespace plait {

/// Sizes that must be known before any array is filled.
struct BatchCounts {
  std::int64_t num_requests = 0;
  std::int64_t total_q = 0;
  std::int64_t num_lists = 0;    // RowBlock records: one per row block, and per KV head if its view
                                 // has a head axis
  std::int64_t blocks_used = 0;  // what counts against Capacity::max_row_blocks: row blocks, times
                                 // num_kv_heads if any view has a head axis
  bool per_kv_head = false;      // any view has a head axis
  bool has_positions = false;    // any view has positions, known or at run time
};

/// Checks the shapes of the arrays, O(views).
BatchCounts count_batch(const AttentionSpec& spec, const Batch& batch);

/// What the arrays say beyond the records.
struct ResolvedBatch {
  bool spans_requests = false;  // some row block spans several requests
  std::int32_t view_begin[kMaxViews + 1] =
      {};  // records of view v: [view_begin[v], view_begin[v + 1])
  std::int64_t longest_kv = 0;
};

/// Checks every value of the batch and fills `blocks` [num_lists], `kv_len` [num_requests] and, if
/// not null, `parents` [num_lists]: the row block (counted within its view) of the next outer view
/// that holds the same rows, -1 in the outermost view.
/// Throws Error naming field, value and expectation; O(requests + row blocks + positions).
ResolvedBatch resolve_batch(const AttentionSpec& spec, const Batch& batch,
                            const BatchCounts& counts, device::RowBlock* blocks,
                            std::int32_t* kv_len, std::int32_t* parents);

/// The same checks for callers that need no records. Allocates.
void validate(const AttentionSpec& spec, const Batch& batch);

}  // namespace plait
