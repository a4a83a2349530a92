// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/cost.h"

#include "cpu/item.h"
#include "cpu/kernel_table.h"

namespace plait::cpu {
namespace {

// Coefficients of one core, in 1/16 ns; docs/cpu.md says how they were measured.
constexpr std::int64_t kUnitsPerNs = 16;
constexpr std::int64_t kBytesPerNs = 18;   // cache read by a decoding thread
constexpr std::int64_t kFlopsPerNs = 160;  // tile path

}  // namespace

PlanTarget plan_target(const AttentionSpec& spec, const Policy& policy, int num_threads) {
  const std::int64_t dims = spec.head_dim_qk + spec.head_dim_vo;
  const auto tile_flops = [&](std::int64_t rows) { return 2 * rows * dims; };
  const auto as_cost = [](std::int64_t units) {
    return static_cast<std::int32_t>(units > 0 ? units : 1);
  };
  TileClass few;
  few.q_tile = kernels().stream_max_rows;
  few.kv_tile = kKvTile;
  few.cost.per_item = as_cost(500 * kUnitsPerNs);
  few.cost.per_tile = as_cost(100 * kUnitsPerNs);
  few.cost.per_kv_token = as_cost(dims * size_of(spec.kv_dtype) * kUnitsPerNs / kBytesPerNs);
  few.cost.per_state_row = as_cost(100 * kUnitsPerNs);
  TileClass full = few;
  full.q_tile = kQueryTile;
  full.cost.per_item = as_cost((500 + spec.head_dim_qk * kQueryTile / 4) * kUnitsPerNs);
  full.cost.per_kv_token = as_cost(tile_flops(kQueryTile) * kUnitsPerNs / kFlopsPerNs);
  PlanTarget target;
  target.num_workers = policy.num_workers > 0 ? policy.num_workers : num_threads;
  target.num_classes = 2;
  target.shared_workers = true;
  target.classes[0] = few;
  target.classes[1] = full;
  target.segment_tokens = 1024;
  target.canonical = full;
  return target;
}

}  // namespace plait::cpu
