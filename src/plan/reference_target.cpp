// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/reference_target.h"

#include "plan/cost_table.h"

namespace plait {

PlanTarget reference_target(const AttentionSpec& spec) {
  PlanTarget t;
  t.num_workers = kReferenceWorkers;
  t.num_classes = 3;
  const std::int32_t q_tiles[] = {16, 64, 128};
  constexpr std::int32_t kKvTile = 64;
  for (std::size_t c = 0; c < 3; ++c) {
    t.classes[c] = {q_tiles[c], kKvTile,
                    cost_model(kReferenceDevice, kReferenceFamily, q_tiles[c], spec.head_dim_qk,
                               spec.head_dim_vo, size_of(spec.kv_dtype))};
  }
  t.canonical = t.classes[1];
  t.segment_tokens = 1024;
  return t;
}

}  // namespace plait
