// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/cost.h"

#include "cpu/item.h"
#include "cpu/kernel_table.h"
#include "plan/cost_table.h"

namespace plait::cpu {
namespace {

// Widening fp8 costs arithmetic: an element takes as long as four bytes of another dtype.
constexpr std::int32_t kBytesOfFp8 = 4;

TileClass tile_class(const AttentionSpec& spec, std::int32_t q_tile) {
  const std::int32_t bytes = size_of(spec.kv_dtype);
  return {q_tile, kKvTile,
          cost_model(kernels().name, "cpu", q_tile, spec.head_dim_qk, spec.head_dim_vo,
                     bytes == 1 ? kBytesOfFp8 : bytes)};
}

}  // namespace

PlanTarget plan_target(const AttentionSpec& spec, const Policy& policy, int num_threads) {
  PlanTarget target;
  target.num_workers = policy.num_workers > 0 ? policy.num_workers : num_threads;
  target.num_classes = 2;
  target.shared_workers = true;
  target.classes[0] = tile_class(spec, kernels().stream_max_rows);
  target.classes[1] = tile_class(spec, kQueryTile);
  target.segment_tokens = 1024;
  target.canonical = target.classes[1];
  return target;
}

}  // namespace plait::cpu
