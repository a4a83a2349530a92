// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The family `mma` as the runtime sees it: what it serves, which kernel it uses for what.
#include <optional>
#include <string>

#include "cuda/family.h"
#include "cuda/kernels/mma/tiles.h"
#include "cuda/kernels/mma/variant_source.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

using device::mma::TileShape;

class MmaFamily final : public FamilyHooks {
 public:
  std::string_view name() const noexcept override { return "mma"; }

  std::string decline_device(const DeviceFacts& facts) const override {
    if (facts.compute_capability >= 80) return {};
    return facts.name + " has compute capability " + std::to_string(facts.compute_capability / 10) +
           "." + std::to_string(facts.compute_capability % 10) +
           "; this family needs 8.0 (cp.async, bf16 products)";
  }

  std::string decline(const AttentionSpec& spec, const DeviceFacts& facts) const override {
    constexpr int kLargestField = 65535;  // of the kernel key
    if (spec.kv_kind == KvKind::kPaged && spec.page_size > kLargestField) {
      return "page_size " + std::to_string(spec.page_size) + " is above 65535";
    }
    if (spec.group_size() > kLargestField) {
      return "group size " + std::to_string(spec.group_size()) + " is above 65535";
    }
    if (mma::choose_target(spec, false, facts).num_workers == 0) {
      return "no tile of head dims " + std::to_string(spec.head_dim_qk) + " / " +
             std::to_string(spec.head_dim_vo) + " fits " +
             std::to_string(facts.shared_bytes_per_block) + " bytes of shared memory";
    }
    return {};
  }

  PlanTarget target(const AttentionSpec& spec, const Policy& policy,
                    const DeviceFacts& facts) const override {
    const bool canonical = policy.kind == PolicyKind::kBatchInvariant;
    const PlanTarget target = mma::choose_target(spec, canonical, facts);
    if (target.num_workers == 0) {
      throw Error(ErrorCode::kUnsupported, "head_dim_qk", std::to_string(spec.head_dim_qk),
                  "head dims whose tiles fit the device's shared memory");
    }
    return target;
  }

  KernelKey key(const KernelRequest& request) const override {
    const AttentionSpec& spec = *request.spec;
    const int blocks = mma::common_blocks(spec, request.canonical, *request.facts);
    const auto shape = mma::choose_shape(spec, request.tile.q_tile, *request.facts, blocks);
    if (!shape || shape->kv_tile != request.tile.kv_tile) {
      throw Error(
          ErrorCode::kInternal, "tile class",
          std::to_string(request.tile.q_tile) + " x " + std::to_string(request.tile.kv_tile),
          "one that target() offered");
    }
    return key_of(spec, *shape, request);
  }

  std::optional<KernelKey> key_on(const KernelKey& key, const DeviceFacts& facts) const override {
    // What shapes depend on.
    AttentionSpec spec;
    spec.head_dim_qk = key.head_dim_qk;
    spec.head_dim_vo = key.head_dim_vo;
    spec.q_dtype = key.q_dtype;
    spec.kv_dtype = key.kv_dtype;
    spec.alibi = (key.variant & kVariantAlibi) != 0;
    if ((key.variant & kVariantRopeHalf) != 0) spec.rope.kind = RopeKind::kHalf;
    if ((key.variant & kVariantRopeInterleaved) != 0) spec.rope.kind = RopeKind::kInterleaved;
    if (key.reduction == KernelReduction::kSum) spec.reduction = Reduction::kSum;
    if (key.user_variant != 0) spec.variant.source = "its text does not matter";
    const bool canonical = (key.mode & kModeCanonical) != 0;
    const int blocks = mma::common_blocks(spec, canonical, facts);
    const auto shape = mma::choose_shape(spec, key.q_tile, facts, blocks);
    if (!shape) return std::nullopt;
    KernelKey there = key;
    set_shape(*shape, &there);
    return there;
  }

  /// Rows that are less aligned than their copies want take a slower path in the kernel.
  int operand_alignment() const noexcept override { return 1; }

  std::string variant_source(const AttentionSpec& spec) const override {
    return mma::variant_source(spec.variant);
  }

 private:
  static std::uint16_t narrow(int value) noexcept { return static_cast<std::uint16_t>(value); }

  static void set_shape(const TileShape& shape, KernelKey* key) noexcept {
    key->q_tile = narrow(shape.q_tile);
    key->kv_tile = narrow(shape.kv_tile);
    key->stages = narrow(shape.stages);
    key->warps = narrow(shape.warps);
    key->tune_a = narrow(shape.row_blocks);
    key->tune_b = narrow(shape.column_warps);
  }

  static KernelKey key_of(const AttentionSpec& spec, const TileShape& shape,
                          const KernelRequest& request) {
    const auto mask_if = [](bool set, int flag) { return set ? flag : 0; };
    KernelKey key;
    key.family = KernelFamily::kMma;
    key.op = KernelOp::kAttention;
    key.head_dim_qk = narrow(spec.head_dim_qk);
    key.head_dim_vo = narrow(spec.head_dim_vo);
    set_shape(shape, &key);
    key.page_size = narrow(spec.kv_kind == KvKind::kRagged ? 1 : spec.page_size);
    key.group_size = narrow(spec.group_size());
    key.variant =
        narrow(mask_if(spec.logits_soft_cap > 0.0, kVariantSoftCap) |
               mask_if(spec.alibi, kVariantAlibi) | mask_if(spec.sink, kVariantSink) |
               mask_if(spec.rope.kind == RopeKind::kHalf, kVariantRopeHalf) |
               mask_if(spec.rope.kind == RopeKind::kInterleaved, kVariantRopeInterleaved));
    key.mode = narrow(mask_if(request.measured, kModeMeasured) |
                      mask_if(request.canonical, kModeCanonical));
    key.q_dtype = spec.q_dtype;
    key.kv_dtype = spec.kv_dtype;
    key.o_dtype = spec.o_dtype;
    key.kv_access = spec.kv_kind == KvKind::kRagged ? KvAccess::kRagged : KvAccess::kPaged;
    key.mask = static_cast<std::uint8_t>(mask_if(spec.mask == MaskKind::kCausal, kMaskCausal) |
                                         mask_if(spec.mask == MaskKind::kCustom, kMaskCustom) |
                                         mask_if(spec.window_left >= 0, kMaskWindow));
    key.reduction =
        spec.reduction == Reduction::kSum ? KernelReduction::kSum : KernelReduction::kSoftmax;
    return key;
  }
};

}  // namespace

std::unique_ptr<FamilyHooks> make_mma_family() { return std::make_unique<MmaFamily>(); }

}  // namespace plait::cuda
