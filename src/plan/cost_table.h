// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Coefficients of the cost model as data, keyed by device, family and tile class. The CPU backend
// takes its own from here; a GPU backend derives them from the rates of the device at hand, and
// the rows here stand for GPUs that are not (`plait explain`, the corpus).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "plan/planner.h"

namespace plait {

struct CostRow {
  std::string_view device;  // a prefix of the device's name (CPU: the instruction set), or "*"
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
