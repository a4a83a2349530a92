// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The family `hopper` as the runtime sees it: what it serves, its tile classes, and the tensor maps
// through which its kernels read.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "cuda/driver.h"
#include "cuda/family.h"
#include "cuda/kernels/hopper/config.h"
#include "cuda/kernels/hopper/params.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

using device::hopper::HopperParams;
using device::hopper::TensorMap;

constexpr int kDecodeRows = 16;
constexpr int kPrefillRows = 128;

std::int32_t cost_units(double ns) {
  return static_cast<std::int32_t>(std::clamp(std::round(ns * 16.0), 1.0, 1e8));
}

/// Sixteenths. A worker of an H200 gets 34 GB/s when all 132 read, 72 when it reads alone, and 54
/// when 48 read beside a prefill on the other SMs (docs/perf-log.md).
constexpr std::int32_t kDecodeHeadroom = 26;

/// Costs as measured on an H200 (docs/perf-log.md), scaled by the device's rates.
CostModel decode_cost(const DeviceFacts& facts, int head_dim) {
  // A worker's share of memory bandwidth: two transfers a clock, nine tenths of which arrive.
  const double bytes_per_ns =
      0.9 * 2.0 * facts.memory_clock_khz * 1e-6 * facts.memory_bus_bits / 8.0 / facts.sm_count;
  CostModel cost;
  cost.per_item = cost_units(3000.0);
  cost.per_tile = 0;
  cost.per_kv_token = cost_units(head_dim * 2 * 2 / std::max(bytes_per_ns, 1.0));
  cost.per_state_row = cost_units(30.0);
  cost.headroom = kDecodeHeadroom;
  return cost;
}

/// Per item: its first softmax, its last product and its output, which overlap with nothing; more
/// if it is causal, which most are. Per tile: the products of 128 x 128, or 128 x 64 of 256 dims,
/// take 2048 clocks; with 64 dims the exponentials take as long as the products.
CostModel prefill_cost(const DeviceFacts& facts, int head_dim) {
  const double item_ns = head_dim <= 64 ? 1550.0 : head_dim <= 128 ? 2900.0 : 6200.0;
  const double clocks = head_dim <= 64 ? 2020.0 : head_dim <= 128 ? 2920.0 : 2600.0;
  const double tile_ns = clocks / std::max(facts.clock_khz * 1e-6, 0.1);
  CostModel cost;
  cost.per_item = cost_units(item_ns);
  cost.per_tile = cost_units(tile_ns);
  cost.per_kv_token = 1;
  cost.per_state_row = cost_units(20.0);
  return cost;
}

/// Extent of an axis whose length changes from plan to plan (query rows, tokens of ragged K and V):
/// maps are captured in graphs. The kernels never ask for a row past an item's last.
constexpr std::int64_t kUnbounded = 0x7FFFFFFF;

/// One axis of a tensor map beyond the innermost: extent, stride in elements, extent of a box.
struct Axis {
  std::int64_t extent = 1;
  std::int64_t stride = 0;
  std::uint32_t box = 1;
};

/// How much the L2 fetches for a miss. 256 bytes, which a row has, cost decode 2 % of its bandwidth
/// at 2 GiB and 4 % at 8 GiB against 128 bytes, one row of a box (docs/perf-log.md).
constexpr CuTensorMapL2Promotion kPromotion = CuTensorMapL2Promotion::k128B;

/// A map over 2-byte elements whose innermost axis is 64 contiguous ones.
void encode_map(const ParameterRequest& from, TensorMap* out, const char* field, DType dtype,
                const void* address, const std::array<Axis, 4>& axes, bool nan_outside) {
  constexpr std::int64_t kLargestStride = std::int64_t{1} << 39;  // elements: 2^40 bytes
  TensorMapRequest request;
  request.address = address;
  request.extents[0] = request.box[0] = 64;
  request.type = dtype == DType::kF16 ? CuTensorMapDataType::kF16 : CuTensorMapDataType::kBF16;
  request.promotion = kPromotion;
  request.outside = nan_outside ? CuTensorMapOobFill::kNan : CuTensorMapOobFill::kZero;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const Axis& axis = axes[i];
    const bool moves = axis.extent > 1;  // else the stride is never used
    if (moves && (axis.stride <= 0 || axis.stride % 8 != 0 || axis.stride >= kLargestStride)) {
      throw Error(ErrorCode::kUnsupported, std::string(field) + ".strides",
                  std::to_string(axis.stride) + " elements",
                  "a positive multiple of 8 below 2^39, as the copy engine needs");
    }
    request.extents[i + 1] = static_cast<std::uint64_t>(std::max<std::int64_t>(axis.extent, 1));
    request.strides[i] = 2 * static_cast<std::uint64_t>(moves ? axis.stride : 64);
    request.box[i + 1] = axis.box;
  }
  const CuTensorMap& map = from.tensor_maps->get(*from.driver, request);
  static_assert(sizeof(TensorMap) == sizeof(CuTensorMap));
  std::memcpy(out, &map, sizeof(TensorMap));
}

/// K or V: strides in elements.
struct PoolRows {
  const char* field;
  const void* address;
  std::int64_t page, token, head;
};

/// How a gathering kernel counts the rows of a pool: 32 bits are enough in units of what strides
/// have in common.
device::hopper::RowUnits row_units(const PoolRows& pool, const device::AttentionParams& p) {
  constexpr std::int64_t kLargestUnit = std::int64_t{1} << 30;         // elements
  const std::int64_t page_stride = p.pool_extent > 1 ? pool.page : 0;  // else never used
  const std::int64_t token_stride = p.page_size > 1 ? pool.token : 0;
  std::int64_t unit = std::max<std::int64_t>(std::gcd(page_stride, token_stride), 8);
  if (unit > kLargestUnit) unit = std::gcd(unit, kLargestUnit);
  const std::int64_t page = page_stride / unit;
  const std::int64_t token = token_stride / unit;
  const std::int64_t pages = p.pool_extent;
  constexpr std::int64_t kMost = device::hopper::kMaxRowNumber;
  const bool counts = page >= 0 && token >= 0 && page <= kMost / std::max<std::int64_t>(pages, 1) &&
                      token <= kMost / p.page_size && page * pages + token * p.page_size <= kMost;
  if (!counts) {
    throw Error(ErrorCode::kUnsupported, std::string(pool.field) + ".strides",
                std::to_string(page_stride) + " and " + std::to_string(token_stride) +
                    " elements from page to page and from token to token",
                "strides from 0 on that 32 bits count in units of their common divisor, as rows "
                "are gathered (family hopper)");
  }
  return {static_cast<device::u32>(page), static_cast<device::u32>(token),
          static_cast<device::u32>(2 * unit)};
}

/// Whether all rows of a pool, page after page, lie at one stride, so that a tensor map holds them
/// by their numbers.
bool counts_rows(const device::hopper::RowUnits& units, const PoolRows& pool,
                 const device::AttentionParams& p) {
  const std::int64_t rows = p.pool_extent * p.page_size;
  return rows > 1 && rows <= std::numeric_limits<std::int32_t>::max() &&
         (p.page_size == 1 || units.token == 1) &&
         (p.pool_extent == 1 || static_cast<std::int64_t>(units.page) == p.page_size) &&
         (p.num_kv_heads == 1 || pool.head > 0);
}

bool gathers(const AttentionSpec& spec) {
  return device::hopper::gathers_rows(spec.kv_kind == KvKind::kPaged, spec.page_size);
}

class HopperFamily final : public FamilyHooks {
 public:
  std::string_view name() const noexcept override { return "hopper"; }

  std::string decline_device(const DeviceFacts& facts) const override {
    if (facts.compute_capability == 90) return {};
    return facts.name + " has compute capability " + std::to_string(facts.compute_capability / 10) +
           "." + std::to_string(facts.compute_capability % 10) +
           "; this family needs 9.0 exactly (wgmma)";
  }

  std::string decline(const AttentionSpec& spec, const DeviceFacts&) const override {
    if (spec.head_dim_qk != spec.head_dim_vo ||
        (spec.head_dim_qk != 64 && spec.head_dim_qk != 128 && spec.head_dim_qk != 256)) {
      return "head dims " + std::to_string(spec.head_dim_qk) + " / " +
             std::to_string(spec.head_dim_vo) + " are not 64, 128 or 256, both the same";
    }
    if ((spec.q_dtype != DType::kBF16 && spec.q_dtype != DType::kF16) ||
        spec.kv_dtype != spec.q_dtype || spec.o_dtype != spec.q_dtype) {
      return "dtypes " + std::string(to_string(spec.q_dtype)) + " / " +
             std::string(to_string(spec.kv_dtype)) + " / " + std::string(to_string(spec.o_dtype)) +
             " of q, kv and o are not all bf16 or all f16";
    }
    const int group = spec.group_size();
    if (group > device::hopper::kMaxGroupSize ||
        !std::has_single_bit(static_cast<unsigned>(group))) {
      return "group size " + std::to_string(group) + " is not a power of two up to 64";
    }
    if (spec.mask == MaskKind::kCustom) return "custom masks are not served";
    if (spec.rope.kind != RopeKind::kNone) return "fused rope is not served";
    if (spec.reduction != Reduction::kSoftmax) return "only the softmax reduction is served";
    if (!spec.variant.source.empty()) return "user variants are not served";
    if (spec.k_scale_per_head) return "scales of K per head are not served";
    // Hidden logits are -inf before they are scaled: a scale that f32 turns into 0 would make NaN.
    const auto scale = static_cast<float>(effective_sm_scale(spec));
    if (!(scale > 0.0F) || !std::isnormal(scale)) return "sm_scale is not a positive f32 number";
    return {};
  }

  std::string decline_policy(const Policy& policy) const override {
    if (policy.kind == PolicyKind::kBatchInvariant) return "batch_invariant plans are not served";
    return {};
  }

  PlanTarget target(const AttentionSpec& spec, const Policy&,
                    const DeviceFacts& facts) const override {
    const int head_dim = spec.head_dim_qk;
    const int chunk = device::hopper::decode_warps(head_dim) * device::hopper::kDecodeBlockTokens;
    PlanTarget target;
    target.num_workers = facts.sm_count;
    target.num_classes = 2;
    target.classes[0] = {kDecodeRows, chunk, decode_cost(facts, head_dim),
                         device::hopper::decodes_pairs(head_dim)};
    target.classes[1] = {kPrefillRows, device::hopper::prefill_tile_tokens(head_dim),
                         prefill_cost(facts, head_dim)};
    return target;
  }

  KernelKey key(const KernelRequest& request) const override {
    const AttentionSpec& spec = *request.spec;
    const bool decode = request.tile.q_tile == kDecodeRows;
    const auto narrow = [](int value) { return static_cast<std::uint16_t>(value); };
    KernelKey key;
    key.family = KernelFamily::kHopper;
    key.op = decode ? KernelOp::kDecode : KernelOp::kPrefill;
    key.head_dim_qk = narrow(spec.head_dim_qk);
    key.head_dim_vo = narrow(spec.head_dim_vo);
    key.q_dtype = key.kv_dtype = key.o_dtype = spec.q_dtype;
    key.q_tile = narrow(request.tile.q_tile);
    key.kv_tile = narrow(request.tile.kv_tile);
    const bool paged = spec.kv_kind == KvKind::kPaged;
    key.page_size = narrow(!paged ? 1 : gathers(spec) ? 0 : spec.page_size);
    key.group_size = narrow(spec.group_size());
    key.variant = narrow((spec.logits_soft_cap > 0.0 ? kVariantSoftCap : 0) |
                         (spec.alibi ? kVariantAlibi : 0));
    key.mode = narrow(request.measured ? kModeMeasured : 0);
    key.stages = narrow(decode ? device::hopper::decode_slots(spec.head_dim_qk) : 2);
    key.warps = narrow(decode ? device::hopper::decode_warps(spec.head_dim_qk) : 12);
    key.kv_access = spec.kv_kind == KvKind::kRagged ? KvAccess::kRagged : KvAccess::kPaged;
    key.mask = static_cast<std::uint8_t>((spec.mask == MaskKind::kCausal ? kMaskCausal : 0) |
                                         (spec.window_left >= 0 ? kMaskWindow : 0));
    return key;
  }

  void complete_parameters(const ParameterRequest& request,
                           ParameterBuffer& parameters) const override {
    static_assert(sizeof(HopperParams) <= kMaxParameterBytes &&
                  offsetof(HopperParams, common) == 0);
    const device::AttentionParams& p = parameters.common();
    const AttentionSpec& spec = *request.kernel->spec;
    if (!(p.k_scale > 0.0F) || !std::isnormal(p.sm_scale * p.k_scale)) {
      throw Error(ErrorCode::kUnsupported, "k_scale", std::to_string(p.k_scale),
                  "a positive scale whose product with sm_scale f32 holds (family hopper)");
    }
    std::memset(parameters.bytes.data() + sizeof(p), 0, sizeof(HopperParams) - sizeof(p));
    auto* params = reinterpret_cast<HopperParams*>(parameters.bytes.data());

    const bool decode = request.kernel->tile.q_tile == kDecodeRows;
    const int tile = decode ? device::hopper::kDecodeBlockTokens
                            : device::hopper::prefill_tile_tokens(spec.head_dim_qk);
    const bool paged = spec.kv_kind == KvKind::kPaged;
    const auto box =
        static_cast<std::uint32_t>(device::hopper::box_tokens(paged, spec.page_size, tile));
    const auto group = static_cast<std::uint32_t>(p.group_size);
    constexpr int kPart = device::hopper::kPartDims;
    const int parts = spec.head_dim_qk / kPart;
    const auto all_parts = static_cast<std::uint32_t>(parts);
    if (!decode) {
      encode_map(
          request, &params->q_map, "q", spec.q_dtype, address_or_any(p.q, p),
          {Axis{p.group_size, p.q_stride_head, group}, Axis{kUnbounded, p.q_stride_row, 64 / group},
           Axis{parts, kPart, all_parts}, Axis{p.num_kv_heads, p.q_stride_head * p.group_size, 1}},
          false);
    }
    const auto encode_pool = [&](TensorMap* map, const PoolRows& pool, const Axis& tokens,
                                 const Axis& pages, std::uint32_t box_parts) {
      encode_map(request, map, pool.field, spec.kv_dtype, address_or_any(pool.address, p),
                 {tokens, Axis{parts, kPart, box_parts}, Axis{p.num_kv_heads, pool.head, 1}, pages},
                 true);
    };
    const PoolRows k{"k", p.k, p.k_stride_page, p.k_stride_slot, p.k_stride_head};
    const PoolRows v{"v", p.v, p.v_stride_page, p.v_stride_slot, p.v_stride_head};
    if (gathers(spec)) {
      params->k_rows = row_units(k, p);
      params->v_rows = row_units(v, p);
      if (!decode && counts_rows(params->k_rows, k, p) && counts_rows(params->v_rows, v, p)) {
        params->maps_count_rows = 1;
        const auto encode_rows = [&](TensorMap* map, const PoolRows& pool, std::uint32_t bytes) {
          const auto rows = static_cast<std::uint32_t>(tile / device::hopper::kGatheringWarps);
          encode_pool(map, pool, Axis{p.pool_extent * p.page_size, bytes / 2, rows}, Axis{}, 1);
        };
        encode_rows(&params->k_map, k, params->k_rows.bytes);
        encode_rows(&params->v_map, v, params->v_rows.bytes);
      }
      return;
    }
    const std::int64_t tokens = paged ? spec.page_size : kUnbounded;
    const std::int64_t pages = paged ? p.pool_extent : 1;
    // Prefill copies the parts of K apart unless a whole tile is one box: see prefill.h.
    const bool split_k = !decode && static_cast<int>(box) < tile;
    encode_pool(&params->k_map, k, Axis{tokens, k.token, box}, Axis{pages, k.page, 1},
                split_k ? 1 : all_parts);
    encode_pool(&params->v_map, v, Axis{tokens, v.token, box}, Axis{pages, v.page, 1}, all_parts);
  }

 private:
  /// An empty operand has no address; nothing is copied from it, but a map wants one.
  static const void* address_or_any(const void* address, const device::AttentionParams& p) {
    return address != nullptr ? address : p.plan;
  }
};

}  // namespace

std::unique_ptr<FamilyHooks> make_hopper_family() { return std::make_unique<HopperFamily>(); }

}  // namespace plait::cuda
