// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace plait {

enum class PolicyKind : std::uint8_t {
  kThroughput,      // chunks and tiles chosen for the shortest step
  kBatchInvariant,  // canonical segments: the bits of a request depend on the request alone
  kFixedChunk,      // KV chunks of exactly `kv_chunk` tokens
  kUnsplit,         // one chunk per tile and view
};

/// How a plan may cut the work. The ablation switches exist to measure what each idea brings.
struct Policy {
  PolicyKind kind = PolicyKind::kThroughput;
  std::int32_t kv_chunk = 0;        // kFixedChunk only: tokens, a multiple of the page size
  std::int32_t num_workers = 0;     // 0: what the backend offers
  bool balance = true;              // longest first to the least loaded worker; off: round robin
  bool allow_write_through = true;  // off: even a single contribution goes through a partial state
  bool tile_per_item = true;        // off: the tile class follows the batch average
  friend bool operator==(const Policy&, const Policy&) = default;
};

/// Upper bounds that size every buffer up front. A batch within them always fits; one beyond is
/// refused with name, need and limit.
struct Capacity {
  std::int64_t max_requests = 0;
  std::int64_t max_query_rows = 0;  // sum of qo_len over a batch
  std::int64_t max_kv_tokens = 0;   // longest kv_len of one request
  std::int64_t max_row_blocks = 0;  // over all views, times num_kv_heads if a view has a head axis;
                                    // 0: max_requests * max_views
  std::int32_t max_views = 1;
  /// The smallest kv_chunk that kFixedChunk plans will use, tokens; 0: no such plans.
  std::int32_t min_kv_chunk = 0;
  bool allow_split = true;  // false: only unsplit and single-view plans; smallest workspace
  bool allow_batch_invariant = true;  // false: kBatchInvariant is refused
  friend bool operator==(const Capacity&, const Capacity&) = default;
};

}  // namespace plait
