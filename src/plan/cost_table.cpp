// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/cost_table.h"

#include <algorithm>
#include <array>

namespace plait {
namespace {

constexpr std::int32_t kMaxCoefficient = 1 << 24;

constexpr std::string_view kCalibrate = "plait bench --calibrate, PLAIT_SIMD=<device>";

// Units: 1/16 ns. Head dim 128 (K and V), 16-bit KV.
//
// H200: a CTA's share of the plain read of 4.4 TB/s is 16.7 bytes/ns with 264 of them, so a decode
// token of 512 bytes costs 31 ns; a 128-row tile of one KV token is 2 * 2 * 128 * 128 flop at
// 1/132 of about 650 Tflop/s.
constexpr std::array kTable = {
    // Threads, by instruction set. Measured on a 4 GHz core; sse4 stands for whatever has its
    // width.
    CostRow{"avx512", "cpu", 16, 128, {4000, 800, 372, 1600}, kCalibrate},
    CostRow{"avx512", "cpu", 64, 128, {4000, 800, 3745, 1600}, kCalibrate},
    CostRow{"avx512_bf16", "cpu", 16, 128, {4000, 800, 372, 1600}, kCalibrate},
    CostRow{"avx512_bf16", "cpu", 64, 128, {4000, 800, 3745, 1600}, kCalibrate},
    CostRow{"avx2", "cpu", 16, 128, {4000, 800, 372, 1600}, kCalibrate},
    CostRow{"avx2", "cpu", 64, 128, {4000, 800, 6991, 1600}, kCalibrate},
    CostRow{"*",
            "cpu",
            16,
            128,
            {6400, 800, 585, 1600},
            "measured for sse4 by plait bench --calibrate"},
    CostRow{"*",
            "cpu",
            64,
            128,
            {6400, 800, 16384, 1600},
            "measured for sse4 by plait bench --calibrate"},
    CostRow{"NVIDIA H200",
            "mma",
            16,
            128,
            {24000, 400, 490, 130},
            "derived: plain read 4.43 TB/s over 264 CTAs, 1.5 us to start an item"},
    CostRow{"NVIDIA H200",
            "mma",
            64,
            128,
            {24000, 800, 560, 130},
            "derived: half of 650 Tflop/s over 264 CTAs"},
    CostRow{"NVIDIA H200",
            "mma",
            128,
            128,
            {24000, 800, 860, 130},
            "derived: half of 650 Tflop/s over 264 CTAs"},
    CostRow{"*", "mma", 16, 128, {32000, 800, 1000, 260}, "derived: half of the H200 row"},
    CostRow{"*", "mma", 128, 128, {32000, 1600, 1720, 260}, "derived: half of the H200 row"},
};

bool better(const CostRow& row, const CostRow* best, std::int32_t q_tile) {
  if (best == nullptr) return true;
  const bool named = row.device != "*";
  const bool best_named = best->device != "*";
  if (named != best_named) return named;
  const bool holds = row.q_tile >= q_tile;
  const bool best_holds = best->q_tile >= q_tile;
  if (holds != best_holds) return holds;
  return holds ? row.q_tile < best->q_tile : row.q_tile > best->q_tile;
}

std::int32_t scaled(std::int64_t value, std::int64_t numerator, std::int64_t denominator) {
  const std::int64_t result = (value * numerator + denominator - 1) / denominator;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(result, 1, kMaxCoefficient));
}

}  // namespace

std::span<const CostRow> cost_table() { return kTable; }

CostModel cost_model(std::string_view device, std::string_view family, std::int32_t q_tile,
                     std::int32_t head_dim_qk, std::int32_t head_dim_vo, std::int32_t kv_bytes) {
  const CostRow* best = nullptr;
  for (const CostRow& row : kTable) {
    if (row.family != family) continue;
    if (row.device != "*" && device.substr(0, row.device.size()) != row.device) continue;
    if (better(row, best, q_tile)) best = &row;
  }
  if (best == nullptr) return {0, 0, 1, 0};
  CostModel cost = best->cost;
  const std::int64_t dims = std::int64_t{head_dim_qk} + head_dim_vo;
  // Small tiles read, large ones compute: only the former get cheaper with narrow elements.
  const bool reads = best->q_tile <= 16;
  const std::int64_t native = 2;
  cost.per_kv_token = scaled(cost.per_kv_token, dims * (reads ? kv_bytes : native),
                             std::int64_t{2} * best->head_dim * native);
  cost.per_state_row = scaled(cost.per_state_row, head_dim_vo, best->head_dim);
  return cost;
}

}  // namespace plait
