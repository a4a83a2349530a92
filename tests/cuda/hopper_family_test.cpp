// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What the family `hopper` declines; no GPU is needed.
#include <gtest/gtest.h>

#include <memory>

#include "cuda/family.h"

namespace plait::cuda {
namespace {

AttentionSpec served_spec() {
  AttentionSpec spec;
  spec.num_qo_heads = 8;
  spec.num_kv_heads = 2;
  spec.head_dim_qk = spec.head_dim_vo = 128;
  return spec;
}

TEST(HopperFamily, DeclinesScalesThatF32TurnsIntoZero) {
  const std::unique_ptr<FamilyHooks> family = make_hopper_family();
  DeviceFacts facts;
  facts.compute_capability = 90;
  AttentionSpec spec = served_spec();
  EXPECT_EQ(family->decline(spec, facts), "");
  for (double scale : {0.0, 1e-300, 1e-44, -0.1}) {
    spec.sm_scale = scale;
    EXPECT_NE(family->decline(spec, facts), "") << scale;
  }
  spec.sm_scale = 1e-30;
  EXPECT_EQ(family->decline(spec, facts), "");
}

}  // namespace
}  // namespace plait::cuda
