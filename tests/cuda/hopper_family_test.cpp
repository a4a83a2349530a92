// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What the family `hopper` declines; no GPU is needed.
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <string>

#include "cuda/family.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

AttentionSpec served_spec() {
  AttentionSpec spec;
  spec.num_qo_heads = 8;
  spec.num_kv_heads = 2;
  spec.head_dim_qk = spec.head_dim_vo = 128;
  return spec;
}

DeviceFacts hopper_facts() {
  DeviceFacts facts;
  facts.compute_capability = 90;
  facts.sm_count = 132;
  facts.clock_khz = 1'980'000;
  facts.memory_clock_khz = 3'201'000;
  facts.memory_bus_bits = 6144;
  return facts;
}

TEST(HopperFamily, ServesOrDeclinesEachOption) {
  const std::unique_ptr<FamilyHooks> family = make_hopper_family();
  const DeviceFacts facts = hopper_facts();
  struct Option {
    const char* name;
    bool served;
    void (*set)(AttentionSpec& spec);
  };
  const Option options[] = {
      {"as it is", true, [](AttentionSpec&) {}},
      {"unequal dims", false, [](AttentionSpec& s) { s.head_dim_vo = 64; }},
      {"dim 96", false, [](AttentionSpec& s) { s.head_dim_qk = s.head_dim_vo = 96; }},
      {"dim 256", true, [](AttentionSpec& s) { s.head_dim_qk = s.head_dim_vo = 256; }},
      {"two dtypes", false, [](AttentionSpec& s) { s.kv_dtype = DType::kF16; }},
      {"f16", true, [](AttentionSpec& s) { s.q_dtype = s.kv_dtype = s.o_dtype = DType::kF16; }},
      {"groups of 3", false, [](AttentionSpec& s) { s.num_qo_heads = 3 * s.num_kv_heads; }},
      {"groups of 64", true, [](AttentionSpec& s) { s.num_qo_heads = 64 * s.num_kv_heads; }},
      {"pages of 5", true, [](AttentionSpec& s) { s.page_size = 5; }},
      {"alibi", true, [](AttentionSpec& s) { s.alibi = true; }},
      {"a custom mask", false, [](AttentionSpec& s) { s.mask = MaskKind::kCustom; }},
  };
  for (const Option& option : options) {
    AttentionSpec spec = served_spec();
    option.set(spec);
    EXPECT_EQ(family->decline(spec, facts).empty(), option.served) << option.name;
  }
  for (const PolicyKind kind : {PolicyKind::kThroughput, PolicyKind::kBatchInvariant,
                                PolicyKind::kFixedChunk, PolicyKind::kUnsplit}) {
    Policy policy;
    policy.kind = kind;
    EXPECT_EQ(family->decline_policy(policy).empty(), kind != PolicyKind::kBatchInvariant);
  }
}

TEST(HopperFamily, DeclinesScalesThatF32TurnsIntoZero) {
  const std::unique_ptr<FamilyHooks> family = make_hopper_family();
  const DeviceFacts facts = hopper_facts();
  AttentionSpec spec = served_spec();
  EXPECT_EQ(family->decline(spec, facts), "");
  for (double scale : {0.0, 1e-300, 1e-44, -0.1}) {
    spec.sm_scale = scale;
    EXPECT_NE(family->decline(spec, facts), "") << scale;
  }
  spec.sm_scale = 1e-30;
  EXPECT_EQ(family->decline(spec, facts), "");
  spec.alibi = true;
  EXPECT_EQ(family->decline(spec, facts), "");
}

KernelRequest request_for(const AttentionSpec& spec, const DeviceFacts& facts, int tile_class) {
  KernelRequest request;
  request.spec = &spec;
  request.facts = &facts;
  request.tile = make_hopper_family()->target(spec, Policy{}, facts).classes[tile_class];
  return request;
}

TEST(HopperFamily, PageSizesThatAreGatheredShareAKernel) {
  const std::unique_ptr<FamilyHooks> family = make_hopper_family();
  const DeviceFacts facts = hopper_facts();
  for (int tile_class = 0; tile_class < 2; ++tile_class) {
    const auto key = [&](int page_size) {
      AttentionSpec spec = served_spec();
      spec.page_size = page_size;
      EXPECT_EQ(family->decline(spec, facts), "") << page_size;
      return family->key(request_for(spec, facts, tile_class));
    };
    for (int page_size : {2, 8, 19, 100, 70'000}) EXPECT_EQ(key(page_size), key(1)) << page_size;
    EXPECT_FALSE(key(16) == key(1));
    EXPECT_FALSE(key(48) == key(16));
  }
}

TEST(HopperFamily, StridesThatAGatheringKernelCannotCountAreRefused) {
  const std::unique_ptr<FamilyHooks> family = make_hopper_family();
  const DeviceFacts facts = hopper_facts();
  AttentionSpec spec = served_spec();
  spec.page_size = 5;
  const KernelRequest kernel = request_for(spec, facts, 0);
  ParameterBuffer buffer;
  device::AttentionParams& params = *new (buffer.bytes.data()) device::AttentionParams{};
  params.sm_scale = params.k_scale = 1.0F;
  params.page_size = 5;
  params.pool_extent = 2;
  params.k_stride_page = params.v_stride_page = 5 * 256;
  params.k_stride_slot = params.v_stride_slot = 256;
  ParameterRequest request;
  request.kernel = &kernel;
  EXPECT_NO_THROW(family->complete_parameters(request, buffer));
  const auto refuses = [&](device::i64* stride, device::i64 value, const std::string& field) {
    const device::i64 before = *stride;
    *stride = value;
    try {
      family->complete_parameters(request, buffer);
      ADD_FAILURE() << field << " " << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.field(), field);
      EXPECT_NE(error.value().find(std::to_string(value)), std::string::npos) << error.value();
    }
    *stride = before;
  };
  refuses(&params.k_stride_page, -1280, "k.strides");
  refuses(&params.v_stride_slot, (device::i64{1} << 40) + 8, "v.strides");
  params.pool_extent = 400'000'000;  // 1 TB
  refuses(&params.k_stride_page, 5 * 256 + 8, "k.strides");
  EXPECT_NO_THROW(family->complete_parameters(request, buffer));
  params.pool_extent = 1;  // a stride that is never used may be anything
  params.k_stride_page = -1280;
  EXPECT_NO_THROW(family->complete_parameters(request, buffer));
}

}  // namespace
}  // namespace plait::cuda
