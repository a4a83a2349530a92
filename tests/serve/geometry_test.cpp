// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/geometry.h"

#include <gtest/gtest.h>

#include "plait/error.h"
#include "serve/virtual_clock.h"

namespace plait::serve {
namespace {

TEST(Geometry, TinyAndLlamaAreWhatTheirNamesSay) {
  const Geometry tiny = parse_geometry("tiny");
  EXPECT_EQ(tiny.num_layers(), 1);
  EXPECT_EQ(tiny.num_qo_heads, 2);
  EXPECT_EQ(tiny.num_kv_heads, 1);
  EXPECT_EQ(tiny.head_dim, 64);
  const Geometry llama = parse_geometry("llama-3.1-8b");
  EXPECT_EQ(llama.num_layers(), 32);
  EXPECT_EQ(llama.kv_bytes_per_token(DType::kBF16), 131072);
}

TEST(Geometry, GemmaAlternatesWindowAndFullLayers) {
  const Geometry gemma = parse_geometry("gemma-2-9b");
  ASSERT_EQ(gemma.groups.size(), 2U);
  EXPECT_EQ(gemma.num_layers(), 42);
  EXPECT_EQ(gemma.groups[0].layers, 21);
  EXPECT_EQ(gemma.groups[0].window_left, -1);
  EXPECT_EQ(gemma.groups[1].window_left, 4095);  // 4096 keys, the row's own included
  EXPECT_EQ(gemma.logits_soft_cap, 50.0);
  EXPECT_EQ(gemma.head_dim, 256);
}

TEST(Geometry, EveryKnownOneMakesSpecs) {
  for (const std::string& name : known_geometries()) {
    SCOPED_TRACE(name);
    const Geometry geometry = parse_geometry(name);
    const auto specs = attention_specs(geometry, 16, DType::kBF16, true);
    ASSERT_EQ(specs.size(), geometry.groups.size());
    for (const AttentionSpec& spec : specs) {
      EXPECT_EQ(spec.num_qo_heads % spec.num_kv_heads, 0);
      EXPECT_EQ(spec.rope.kind, RopeKind::kHalf);
      EXPECT_EQ(spec.mask, MaskKind::kCausal);
    }
    EXPECT_EQ(attention_specs(geometry, 16, DType::kBF16, false)[0].rope.kind, RopeKind::kNone);
  }
}

TEST(Geometry, ExplicitShapes) {
  const Geometry g =
      parse_geometry("layers=6,q=8,kv=2,dim=96,window=128,window-layers=4,cap=30,theta=5e5");
  ASSERT_EQ(g.groups.size(), 2U);
  EXPECT_EQ(g.groups[0].layers, 2);
  EXPECT_EQ(g.groups[1].layers, 4);
  EXPECT_EQ(g.groups[1].window_left, 127);
  EXPECT_EQ(g.logits_soft_cap, 30.0);
  EXPECT_EQ(g.rope.theta, 5e5);
  const Geometry all = parse_geometry("layers=6,q=8,kv=2,dim=96,window=128");
  ASSERT_EQ(all.groups.size(), 1U);
  EXPECT_EQ(all.groups[0].layers, 6);
}

TEST(Geometry, RefusesNamingTheKey) {
  const auto field_of = [](const char* text) -> std::string {
    try {
      parse_geometry(text);
    } catch (const Error& error) {
      return error.field();
    }
    return "accepted";
  };
  EXPECT_EQ(field_of("llama-9"), "geometry");
  EXPECT_EQ(field_of("layers=1,q=2,kv=1,dim=4,theta=0.00025"), "accepted");        // 63 rad
  EXPECT_EQ(field_of("layers=1,q=2,kv=1,dim=4,theta=0.00024"), "geometry.theta");  // 65 rad
  for (const char* theta : {"0", "-0.5", "-1", "inf", "nan", "1e999", "x", ""}) {
    try {
      parse_geometry(std::string("layers=1,q=2,kv=1,dim=64,theta=") + theta);
      ADD_FAILURE() << theta;
    } catch (const Error& error) {
      EXPECT_EQ(error.field(), "geometry.theta");
      EXPECT_EQ(error.expected(), "a positive number") << theta;
    }
  }
  EXPECT_EQ(field_of(""), "geometry");
  EXPECT_EQ(field_of("layers=1,q=2,kv=1"), "geometry.dim");
  EXPECT_EQ(field_of("layers=1,q=3,kv=2,dim=64"), "geometry.q");
  EXPECT_EQ(field_of("layers=0,q=2,kv=1,dim=64"), "geometry.layers");
  EXPECT_EQ(field_of("layers=1,q=2,kv=1,dim=64,"), "geometry");
  EXPECT_EQ(field_of("layers=1,layers=1,q=2,kv=1,dim=64"), "geometry.layers");
  EXPECT_EQ(field_of("layers=1,q=2,kv=1,dim=65"), "geometry.dim");
  EXPECT_EQ(field_of("layers=1,q=2,kv=1,dim=64,depth=3"), "geometry.key");
  EXPECT_EQ(field_of("layers=1,q=2,kv=1,dim=64,window-layers=1"), "geometry.window-layers");
  EXPECT_EQ(field_of("layers=1,q=2,kv=1,dim=64,window=9,window-layers=2"),
            "geometry.window-layers");
  EXPECT_EQ(field_of("layers=1,q=2,kv=1,dim=64,cap=nan"), "geometry.cap");
}

TEST(AffineTime, ParsesAndRefuses) {
  EXPECT_EQ(parse_affine_time("5000+25*tokens", "clock-us").microseconds(100), 7500.0);
  EXPECT_EQ(parse_affine_time("5000+0.5", "clock-us").microseconds(100), 5050.0);
  EXPECT_EQ(parse_affine_time("5000", "clock-us").microseconds(100), 5000.0);
  for (const char* text : {"", "+", "a", "5+", "-5+1", "5+-1", "inf", "nan", "5*tokens", "5+1*rows",
                           "1e99", "5 + 1"}) {
    EXPECT_THROW(parse_affine_time(text, "clock-us"), Error) << text;
  }
}

TEST(VirtualClock, EndsWithAnErrorBeforeItWraps) {
  VirtualClock clock(AffineTime{1e9, 1e9});
  clock.advance_step(1000);
  EXPECT_THROW(clock.advance_step(std::int64_t{1} << 40), Error);
  EXPECT_EQ(clock.now_ns(), 1'001'000'000'000'000);
}

TEST(VirtualClock, AlwaysAdvances) {
  VirtualClock clock(AffineTime{0.0, 0.0});
  clock.advance_step(1);
  EXPECT_EQ(clock.now_ns(), 1);
  clock.wait_until(100);
  clock.wait_until(50);
  EXPECT_EQ(clock.now_ns(), 100);
}

}  // namespace
}  // namespace plait::serve
