// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/cost.h"

#include <algorithm>
#include <string_view>

#include "cpu/item.h"
#include "cpu/kernel_table.h"

namespace plait::cpu {
namespace {

/// What one thread does, per instruction set: `plait bench --calibrate` prints these.
struct Coefficients {
  std::string_view simd;
  std::int64_t item_ns;              // to start an item
  std::int64_t stream_bytes_per_ns;  // few rows: K and V as they come from memory
  std::int64_t tile_flops_per_ns;    // full query tiles
};

// Measured on a 4 GHz core with AVX-512; neon takes the cautious figures of sse4, which has the
// same width, until it is measured.
constexpr Coefficients kMeasured[] = {
    {"avx512", 250, 22, 140},
    {"avx2", 250, 22, 75},
    {"sse4", 400, 14, 32},
    {"neon", 400, 14, 32},
};

// Widening fp8 costs arithmetic: an element takes as long as two bytes of another dtype and more.
constexpr std::int64_t kStreamBytesOfFp8 = 4;

const Coefficients& coefficients() {
  for (const Coefficients& row : kMeasured) {
    if (row.simd == kernels().name) return row;
  }
  return kMeasured[2];
}

/// The planner takes coefficients in [1, 2^24].
std::int32_t as_cost(std::int64_t units) {
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(units, 1, (1 << 24) - 1));
}

}  // namespace

PlanTarget plan_target(const AttentionSpec& spec, const Policy& policy, int num_threads) {
  const Coefficients& c = coefficients();
  const std::int64_t dims = spec.head_dim_qk + spec.head_dim_vo;
  const bool fp8 = size_of(spec.kv_dtype) == 1;
  const std::int64_t bytes = dims * (fp8 ? kStreamBytesOfFp8 : size_of(spec.kv_dtype));
  TileClass few;
  few.q_tile = kernels().stream_max_rows;
  few.kv_tile = kKvTile;
  few.cost.per_item = as_cost(c.item_ns * kCostUnitsPerNs);
  few.cost.per_tile = as_cost(50 * kCostUnitsPerNs);
  few.cost.per_kv_token = as_cost(bytes * kCostUnitsPerNs / c.stream_bytes_per_ns);
  few.cost.per_state_row = as_cost(100 * kCostUnitsPerNs);
  TileClass full = few;
  full.q_tile = kQueryTile;
  full.cost.per_kv_token = as_cost(2 * kQueryTile * dims * kCostUnitsPerNs / c.tile_flops_per_ns);
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
