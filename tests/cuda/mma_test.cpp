// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Family `mma` without a device: which tiles it chooses where, and that the kernels it names
// compile to what the choice promised.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/family.h"
#include "cuda/jit/compiler.h"
#include "cuda/jit/generate.h"
#include "cuda/kernels/mma/tiles.h"
#include "cuda/kernels/mma/variant_source.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

struct Chip {
  const char* name;
  int compute_capability;
  int shared_kib;  // per multiprocessor; a block gets one KiB less
  const char* arch;
};
constexpr Chip kChips[] = {{"A100", 80, 164, "sm_80"},
                           {"A10", 86, 100, "sm_86"},
                           {"H200", 90, 228, "sm_90a"},
                           {"RTX 5090", 120, 100, "sm_120a"}};

DeviceFacts facts_of(const Chip& chip) {
  DeviceFacts facts;
  facts.name = chip.name;
  facts.compute_capability = chip.compute_capability;
  facts.sm_count = 108;
  facts.shared_bytes_per_sm = chip.shared_kib * 1024;
  facts.shared_bytes_per_block = (chip.shared_kib - 1) * 1024;
  facts.clock_khz = 1'500'000;
  facts.memory_clock_khz = 2'600'000;
  facts.memory_bus_bits = 5120;
  return facts;
}

AttentionSpec spec_of(int dim_qk, int dim_vo, DType q = DType::kBF16, DType kv = DType::kBF16) {
  AttentionSpec spec;
  spec.num_qo_heads = 8;
  spec.num_kv_heads = 2;
  spec.head_dim_qk = dim_qk;
  spec.head_dim_vo = dim_vo;
  spec.q_dtype = q;
  spec.kv_dtype = kv;
  return spec;
}

TEST(MmaTiles, EveryHeadDimHasTilesThatFit) {
  for (const Chip& chip : kChips) {
    const DeviceFacts facts = facts_of(chip);
    for (const int dim : {1, 8, 46, 64, 72, 80, 96, 112, 128, 136, 192, 256, 320, 512}) {
      for (const DType type : {DType::kBF16, DType::kF32}) {
        const AttentionSpec spec = spec_of(dim, dim, type, type);
        const PlanTarget target = mma::choose_target(spec, false, facts);
        if (target.num_workers == 0) {
          // Wide f32 rows on small multiprocessors only; decline() says so.
          EXPECT_TRUE(type == DType::kF32 && dim > 256) << chip.name << " dim " << dim;
          continue;
        }
        const int blocks = mma::common_blocks(spec, false, facts);
        EXPECT_EQ(target.num_workers, blocks * facts.sm_count);
        int previous = 0;
        for (int c = 0; c < target.num_classes; ++c) {
          const TileClass& tile = target.classes[static_cast<std::size_t>(c)];
          EXPECT_GT(tile.q_tile, previous);
          previous = tile.q_tile;
          EXPECT_GT(tile.cost.per_kv_token, 0);
          const auto shape = mma::choose_shape(spec, tile.q_tile, facts, blocks);
          ASSERT_TRUE(shape.has_value());
          EXPECT_EQ(shape->kv_tile, tile.kv_tile);
          const int bytes = device::mma::shared_layout(*shape).total;
          EXPECT_LE(bytes, facts.shared_bytes_per_block);
          EXPECT_LE(blocks * (bytes + device::mma::kReservedShared), facts.shared_bytes_per_sm);
        }
      }
    }
  }
}

TEST(MmaTiles, CanonicalWarpsSplitRowsOnly) {
  for (const Chip& chip : kChips) {
    const DeviceFacts facts = facts_of(chip);
    for (const int dim : {64, 128, 256}) {
      const AttentionSpec spec = spec_of(dim, dim);
      const PlanTarget target = mma::choose_target(spec, true, facts);
      ASSERT_GT(target.num_workers, 0) << chip.name << " dim " << dim;
      EXPECT_EQ(target.segment_tokens % target.canonical.kv_tile, 0);
      const auto shape = mma::choose_shape(spec, target.canonical.q_tile, facts,
                                           mma::common_blocks(spec, true, facts));
      ASSERT_TRUE(shape.has_value());
      EXPECT_EQ(shape->key_warps(), 1);
    }
  }
}

TEST(MmaTiles, OldDevicesAreDeclinedByName) {
  DeviceFacts facts = facts_of(kChips[0]);
  facts.name = "T4";
  facts.compute_capability = 75;
  const std::string reason = make_mma_family()->decline_device(facts);
  EXPECT_NE(reason.find("T4"), std::string::npos) << reason;
  EXPECT_NE(reason.find("7.5"), std::string::npos) << reason;
  EXPECT_TRUE(make_mma_family()->decline_device(facts_of(kChips[0])).empty());
}

TEST(MmaTiles, ProductsRunInTheTypeThatHoldsBothSides) {
  using enum DType;
  EXPECT_EQ(mma::compute_dtype(spec_of(64, 64, kF16, kF16)), kF16);
  EXPECT_EQ(mma::compute_dtype(spec_of(64, 64, kBF16, kF8E4M3)), kBF16);
  EXPECT_EQ(mma::compute_dtype(spec_of(64, 64, kF8E5M2, kF16)), kF16);
  EXPECT_EQ(mma::compute_dtype(spec_of(64, 64, kF8E5M2, kF8E4M3)), kBF16);
  EXPECT_EQ(mma::compute_dtype(spec_of(64, 64, kBF16, kF16)), kF32);
  EXPECT_EQ(mma::compute_dtype(spec_of(64, 64, kF32, kF8E4M3)), kF32);
}

class MmaCompile : public testing::Test {
 protected:
  void SetUp() override {
    if (Nvrtc::find() == nullptr) GTEST_SKIP() << "no NVRTC";
  }

  /// The kernel of the `index`-th class of `spec`, checked against the layout that chose it.
  static void check(const AttentionSpec& spec, const Chip& chip, int index, bool canonical) {
    const DeviceFacts facts = facts_of(chip);
    const auto family = make_mma_family();
    const PlanTarget target = mma::choose_target(spec, canonical, facts);
    const TileClass tile =
        canonical ? target.canonical : target.classes[static_cast<std::size_t>(index)];
    KernelKey key = family->key({&spec, &facts, tile, canonical, false, false});
    const std::string variant = family->variant_source(spec);
    if (!variant.empty()) {
      key.user_variant = variant_hash(variant);
      key.variant |= kVariantUser;
    }
    const CompiledKernel kernel = compile(
        Nvrtc::get(),
        make_compile_unit(key, parse_arch(chip.arch, "arch"), variant, SourceSet::embedded()));
    SCOPED_TRACE(std::string(chip.arch) + " " + to_string(key));
    EXPECT_EQ(kernel.resources.spill_store_bytes, 0);
    EXPECT_TRUE(kernel.warnings.empty()) << kernel.warnings.front();
    const auto shape =
        mma::choose_shape(spec, tile.q_tile, facts, mma::common_blocks(spec, canonical, facts));
    ASSERT_TRUE(shape.has_value());
    EXPECT_EQ(kernel.launch.threads, shape->warps * 32);
    EXPECT_EQ(kernel.launch.dynamic_shared_bytes, device::mma::shared_layout(*shape).total);
  }
};

TEST_F(MmaCompile, HostAndKernelAgreeOnTheLayout) {
  check(spec_of(128, 128), kChips[2], 2, false);
  check(spec_of(40, 72, DType::kF16, DType::kF8E5M2), kChips[0], 0, false);
  AttentionSpec rope = spec_of(64, 64, DType::kF32, DType::kF32);
  rope.rope.kind = RopeKind::kInterleaved;
  check(rope, kChips[1], 1, false);
  AttentionSpec masked = spec_of(64, 64);
  masked.mask = MaskKind::kCustom;
  masked.sink = true;
  check(masked, kChips[3], 0, true);
}

TEST_F(MmaCompile, UserVariantsCompileAndTheirErrorsNameTheirLines) {
  AttentionSpec spec = spec_of(64, 64);
  spec.variant.name = "Tempered";
  spec.variant.params = {{"temperature", false, {0.5F}},
                         {"per_head", true, {1, 2, 3, 4, 5, 6, 7, 8}}};
  spec.variant.source =
      "struct Tempered : plait::device::VariantBase {\n"
      "  static constexpr bool kHasLogits = true;\n"
      "  template <class T> PLAIT_HD static T logits(\n"
      "      T s, const plait::device::LogitSite<T>& at, const Params& p) {\n"
      "    return s * p.temperature * p.per_head[at.qo_head];\n"
      "  }\n"
      "};\n";
  check(spec, kChips[2], 0, false);
  spec.variant.source.replace(spec.variant.source.find("p.temperature"), 13, "p.temperatur ");
  try {
    check(spec, kChips[2], 0, false);
    ADD_FAILURE() << "an unknown parameter compiled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCompile);
    EXPECT_EQ(error.field(), "variant.source");
    EXPECT_NE(error.expected().find("variant.source(5)"), std::string::npos) << error.what();
    EXPECT_NE(error.expected().find("temperatur"), std::string::npos) << error.what();
  }
}

TEST_F(MmaCompile, WhatHasAHooksNameIsAHook) {
  AttentionSpec spec = spec_of(64, 64);
  spec.variant.name = "V";
  const std::string rest = "(float s, const LogitSite<float>&, const Params&) { return 2 * s; } };";
  for (const char* flag : {"", "static constexpr bool kHasLogits = true; "}) {
    spec.variant.source =
        std::string("struct V : VariantBase { ") + flag + "PLAIT_HD static float logits" + rest;
    try {
      check(spec, kChips[2], 0, false);
      ADD_FAILURE() << "a plain function compiled: " << spec.variant.source;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCompile);
      EXPECT_NE(error.expected().find("logits() has to be a public static member"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST_F(MmaCompile, AReductionThatIsNotTheSpecsIsAnInvalidArgument) {
  AttentionSpec spec = spec_of(64, 64);
  spec.variant.name = "V";
  for (const Reduction declared : {Reduction::kSoftmax, Reduction::kSum}) {
    const bool sum = declared == Reduction::kSum;
    spec.reduction = sum ? Reduction::kSoftmax : Reduction::kSum;
    spec.variant.source = std::string("struct V : VariantBase { static constexpr ReductionKind ") +
                          "kReduction = ReductionKind::" + (sum ? "kSum" : "kSoftmax") + "; };";
    try {
      check(spec, kChips[2], 0, false);
      ADD_FAILURE() << "it compiled";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
      EXPECT_EQ(error.field(), "reduction");
      EXPECT_EQ(error.value(), sum ? "softmax" : "sum");
    }
  }
}

}  // namespace
}  // namespace plait::cuda
