// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Coefficients of the cost model as data, keyed by device, family and tile class: what a device is
// expected to take when nothing runs there (the reference device of the corpus and of `plait
// explain`). A backend at hand states its own in PlanTarget, from its kernels' rates;
// `plait bench --calibrate` measures those.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "plan/planner.h"

namespace plait {

struct CostRow {
  std::string_view device;  // a prefix of the device's name, or "*"
  std::string_view family;  // "cpu", "mma", "hopper"
  std::int32_t q_tile;      // the class; lookups take the nearest at or above
  std::int32_t head_dim;    // coefficients scale with head_dim_qk + head_dim_vo from here
  CostModel cost;
  std::string_view source;  // the command that measured it, or what it was derived from
};

std::span<const CostRow> cost_table();

/// Coefficients for a tile class; rows of the named device win over "*". Per-token and per-state
/// costs scale with the head dims (a KV token of fp8 costs half of one in 16 bits; `kv_bytes` is
/// the size of one element). A family without any row gets costs of one unit per token.
CostModel cost_model(std::string_view device, std::string_view family, std::int32_t q_tile,
                     std::int32_t head_dim_qk, std::int32_t head_dim_vo, std::int32_t kv_bytes);

}  // namespace plait
