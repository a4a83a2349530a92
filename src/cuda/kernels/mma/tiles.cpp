// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/mma/tiles.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace plait::cuda::mma {
namespace {

using device::mma::TileShape;

constexpr int kCanonicalQTile = 64;
constexpr int kSegmentTokens = 1024;

bool is_fp8(DType dtype) noexcept { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }

/// Warps and their division of a query tile. An output accumulator holds at most 128 registers:
/// columns / 2 per block of 16 rows.
bool divide_warps(int q_tile, bool tensor_cores, TileShape* shape) {
  const bool wide = shape->head_dim_vo > 256;
  shape->row_blocks = 1;
  shape->column_warps = 1;
  switch (q_tile) {
    case 16:
      shape->warps = 4;  // four key warps, or four column warps
      if (wide) shape->column_warps = 4;
      return true;
    case 32:
      shape->warps = 4;
      if (wide) shape->column_warps = 2;
      return true;
    case 64:
      shape->warps = wide ? 8 : 4;
      if (wide) shape->column_warps = 2;
      return true;
    case 128:
      if (!tensor_cores || wide) return false;
      shape->row_blocks = shape->head_dim_vo <= 128 && shape->head_dim_qk <= 192 ? 2 : 1;
      shape->warps = shape->row_blocks == 2 ? 4 : 8;
      return true;
    default: return false;
  }
}

constexpr std::array<int, 3> kCandidateQTiles{16, 64, 128};

/// Costs in 1/16 ns, from the device's rates.
CostModel cost_of(const AttentionSpec& spec, const TileShape& shape, int workers,
                  const DeviceFacts& facts) {
  // Memory: two transfers a clock. Products: what the kernels reach, some 290 Tflop/s on an H200.
  const double bytes_per_ns =
      0.9 * 2.0 * facts.memory_clock_khz * 1e-6 * facts.memory_bus_bits / 8.0;
  const double flops_per_ns =
      (shape.compute_size == 2 ? 1100.0 : 120.0) * facts.sm_count * facts.clock_khz * 1e-6;
  const double row_bytes = static_cast<double>(spec.head_dim_qk + spec.head_dim_vo) * shape.kv_size;
  const double token_flops = 2.0 * shape.q_tile * (spec.head_dim_qk + spec.head_dim_vo);
  // Larger query tiles read keys that neighbours have read: from L2, at some three times the rate.
  const double reuse = shape.q_tile > 16 ? 3.0 : 1.0;
  const double memory_ns = workers * row_bytes / (std::max(bytes_per_ns, 1.0) * reuse);
  const double product_ns = workers * token_flops / std::max(flops_per_ns, 1.0);
  const double state_ns = workers * 8.0 * spec.head_dim_vo / std::max(bytes_per_ns, 1.0);
  const auto units = [](double ns) {
    return static_cast<std::int32_t>(std::clamp(ns * 16.0, 1.0, 1e6));
  };
  CostModel cost;
  cost.per_item = units(5000.0);
  cost.per_tile = units(50.0);
  cost.per_kv_token = units(std::max(memory_ns, product_ns));
  cost.per_state_row = units(state_ns);
  return cost;
}

}  // namespace

DType compute_dtype(const AttentionSpec& spec) noexcept {
  if (is_fp8(spec.q_dtype)) return is_fp8(spec.kv_dtype) ? DType::kBF16 : spec.kv_dtype;
  if (is_fp8(spec.kv_dtype) || spec.q_dtype == spec.kv_dtype) return spec.q_dtype;
  return DType::kF32;
}

std::optional<TileShape> choose_shape(const AttentionSpec& spec, int q_tile,
                                      const DeviceFacts& facts, int blocks) {
  const DType compute = compute_dtype(spec);
  TileShape shape{};
  shape.q_tile = q_tile;
  shape.head_dim_qk = spec.head_dim_qk;
  shape.head_dim_vo = spec.head_dim_vo;
  shape.compute_size = size_of(compute);
  shape.kv_size = size_of(spec.kv_dtype);
  shape.widen = spec.kv_dtype != compute;
  shape.rope = spec.rope.kind != RopeKind::kNone;
  shape.user = !spec.variant.source.empty();
  shape.alibi = spec.alibi;
  const bool tensor_cores = compute != DType::kF32;
  if (!divide_warps(q_tile, tensor_cores, &shape)) return std::nullopt;
  if (shape.warps > 4 && blocks > 1) return std::nullopt;
  // Decode hides memory latency by depth, prefill by arithmetic.
  const int deepest = q_tile <= 16 ? 4 : 3;
  // f32 scores of 64 keys, or ALiBi logit by logit in two row blocks, would not fit the registers.
  const bool hooked = shape.user || spec.reduction == Reduction::kSum;
  const bool narrow =
      (!tensor_cores && q_tile > 16) || (shape.row_blocks > 1 && spec.alibi && hooked);
  const int widest = narrow ? 32 : 64;
  for (const int kv_tile : {64, 32, 16}) {
    if (kv_tile > widest) continue;
    // Four warps on 16 rows divide the keys of a tile as far as there are 16 for each, and the
    // columns beyond that.
    if (q_tile == 16 && spec.head_dim_vo <= 256) shape.column_warps = 64 / kv_tile;
    if (kv_tile < 16 * shape.key_warps()) continue;
    for (int stages = deepest; stages >= 1; --stages) {
      // One stage with wide tiles hides less than two with narrow ones.
      if (stages == 1 && kv_tile > 32 && q_tile > 16) continue;
      shape.kv_tile = kv_tile;
      shape.stages = stages;
      if (stages * kv_tile > 64 * shape.warps) continue;  // what the key table holds
      const int total = device::mma::shared_layout(shape).total;
      if (total <= facts.shared_bytes_per_block &&
          blocks * (total + device::mma::kReservedShared) <= facts.shared_bytes_per_sm) {
        return shape;
      }
    }
  }
  return std::nullopt;
}

int common_blocks(const AttentionSpec& spec, bool canonical, const DeviceFacts& facts) {
  if (canonical) return choose_shape(spec, kCanonicalQTile, facts, 2) ? 2 : 1;
  for (const int q_tile : kCandidateQTiles) {
    if (choose_shape(spec, q_tile, facts, 1) && !choose_shape(spec, q_tile, facts, 2)) return 1;
  }
  return 2;
}

PlanTarget choose_target(const AttentionSpec& spec, bool canonical, const DeviceFacts& facts) {
  PlanTarget target;
  const int blocks = common_blocks(spec, canonical, facts);
  target.num_workers = blocks * facts.sm_count;
  target.num_classes = 0;
  target.segment_tokens = kSegmentTokens;
  const auto tile_class = [&](const TileShape& shape) {
    return TileClass{shape.q_tile, shape.kv_tile, cost_of(spec, shape, target.num_workers, facts)};
  };
  for (const int q_tile : kCandidateQTiles) {
    if (const auto shape = choose_shape(spec, q_tile, facts, blocks)) {
      target.classes[static_cast<std::size_t>(target.num_classes++)] = tile_class(*shape);
    }
  }
  if (const auto shape = choose_shape(spec, kCanonicalQTile, facts, blocks)) {
    target.canonical = tile_class(*shape);
  }
  if (target.num_classes == 0 || (canonical && target.canonical.q_tile == 0))
    target.num_workers = 0;
  return target;
}

}  // namespace plait::cuda::mma
