// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/fit_capacity.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/batch_resolve.h"
#include "plait/error.h"

namespace plait {

Capacity fit_capacity(std::span<const AttentionSpec> groups, std::span<const Batch> batches,
                      const Policy& policy) {
  if (batches.size() != 1 && batches.size() != groups.size()) {
    throw Error(ErrorCode::kInvalidArgument, "batches (length)", std::to_string(batches.size()),
                "1 or one per group, " + std::to_string(groups.size()));
  }
  Capacity fit;
  fit.max_row_blocks = 1;
  fit.min_kv_chunk = policy.kind == PolicyKind::kFixedChunk ? policy.kv_chunk : 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const Batch& batch = batches[batches.size() == 1 ? 0 : g];
    const BatchCounts counts = count_batch(groups[g], batch);
    std::vector<device::RowBlock> blocks(static_cast<std::size_t>(counts.num_lists));
    std::vector<std::int32_t> kv_len(static_cast<std::size_t>(counts.num_requests));
    const ResolvedBatch resolved =
        resolve_batch(groups[g], batch, counts, blocks.data(), kv_len.data(), nullptr);
    fit.max_requests = std::max(fit.max_requests, counts.num_requests);
    fit.max_query_rows = std::max(fit.max_query_rows, counts.total_q);
    fit.max_row_blocks = std::max(fit.max_row_blocks, counts.blocks_used);
    fit.max_kv_tokens = std::max(fit.max_kv_tokens, resolved.longest_kv);
    fit.max_views = std::max(fit.max_views, static_cast<std::int32_t>(batch.views.size()));
  }
  return fit;
}

}  // namespace plait
