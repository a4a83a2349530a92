// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/convert.h"
#include "cpu/cpu_backend.h"
#include "plait/error.h"

namespace plait {
namespace {

const float kMinusInfinity = -std::numeric_limits<float>::infinity();

class CpuOps : public testing::Test {
 protected:
  CpuOps() {
    EngineOptions options;
    options.num_threads = 2;
    ops_ = make_cpu_operations(options);
  }
  std::unique_ptr<Operations> ops_;
};

Tensor tensor(std::vector<float>& data, std::initializer_list<std::int64_t> shape) {
  return Tensor::contiguous(data.data(), DType::kF32, shape);
}
Tensor tensor(std::vector<std::int32_t>& data) {
  return Tensor::contiguous(data.data(), DType::kI32, {static_cast<std::int64_t>(data.size())});
}

TEST_F(CpuOps, MergeStateWeighsByLogSumExp) {
  std::vector<float> a{1, 2}, b{5, 6}, o(2), la{std::log(8.0F)}, lb{std::log(2.0F)}, l(1);
  ops_->merge_state(tensor(a, {1, 1, 2}), tensor(la, {1, 1}), tensor(b, {1, 1, 2}),
                    tensor(lb, {1, 1}), tensor(o, {1, 1, 2}), tensor(l, {1, 1}), {}, {});
  EXPECT_NEAR(o[0], 1.8F, 1e-6F);  // natural base: 0.8 * 1 + 0.2 * 5
  EXPECT_NEAR(o[1], 2.8F, 1e-6F);
  EXPECT_NEAR(l[0], std::log(10.0F), 1e-6F);
}

TEST_F(CpuOps, EmptyStatesAreNeutralInPlaceMaskedAndNary) {
  std::vector<float> a{0, 3, 7}, b{0, 0, 9}, la{kMinusInfinity, 0.5F, 0.25F},
      lb{kMinusInfinity, kMinusInfinity, 1};
  std::vector<std::uint8_t> mask{1, 1, 0};
  ops_->merge_state(tensor(a, {3, 1, 1}), tensor(la, {3, 1}), tensor(b, {3, 1, 1}),
                    tensor(lb, {3, 1}), tensor(a, {3, 1, 1}), tensor(la, {3, 1}),
                    Tensor::contiguous(mask.data(), DType::kU8, {3}), {});
  EXPECT_EQ(a, (std::vector<float>{0, 3, 7}));
  EXPECT_EQ(la, (std::vector<float>{kMinusInfinity, 0.5F, 0.25F}));
  std::vector<float> states{0, 3, 0}, lses{kMinusInfinity, 0.0F, kMinusInfinity}, o(1, 99.0F), l(1);
  ops_->merge_states(tensor(states, {1, 3, 1, 1}), tensor(lses, {1, 3, 1}), tensor(o, {1, 1, 1}),
                     tensor(l, {1, 1}), {});
  EXPECT_EQ(o[0], 3.0F);
  EXPECT_EQ(l[0], 0.0F);
}

TEST_F(CpuOps, FinalizeAppliesTheSinkOnce) {
  std::vector<float> o{1, 1, 1, 1},
      lse{std::log(4.0F), std::log(4.0F), std::log(4.0F), kMinusInfinity},
      sink{0.0F, kMinusInfinity, 1e4F, 0.0F}, out(4);
  ops_->finalize_state(tensor(o, {1, 4, 1}), tensor(lse, {1, 4}), tensor(sink, {4}),
                       tensor(out, {1, 4, 1}), {});
  EXPECT_NEAR(out[0], 0.8F, 1e-6F);
  EXPECT_EQ(out[1], 1.0F);
  EXPECT_EQ(out[2], 0.0F);
  EXPECT_EQ(out[3], 0.0F);
}

TEST_F(CpuOps, AppendWritesTheRightSlotsInEveryLayout) {
  const std::int64_t pages = 5, page_size = 3, heads = 2, dim = 4, tokens = 70;
  for (KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd}) {
    std::vector<float> k(static_cast<std::size_t>(tokens * heads * dim)), v(k.size());
    for (std::size_t i = 0; i < k.size(); ++i)
      k[i] = static_cast<float>(i) + 1.0F, v[i] = -static_cast<float>(i) - 1.0F;
    std::vector<std::int32_t> batch(static_cast<std::size_t>(tokens), -1),
        positions(static_cast<std::size_t>(tokens), 0);
    batch[1] = 0, positions[1] = 4;
    batch[69] = 1, positions[69] = 0;
    std::vector<std::int32_t> indptr{0, 2, 3}, ids{4, 0, 2};
    std::vector<float> kc(static_cast<std::size_t>(pages * page_size * heads * dim), 0.0F), vc = kc;
    const auto cache = [&](std::vector<float>& data) {
      return layout == KvLayout::kNhd ? tensor(data, {pages, page_size, heads, dim})
                                      : tensor(data, {pages, heads, page_size, dim});
    };
    ops_->append_paged_kv(tensor(k, {tokens, heads, dim}), tensor(v, {tokens, heads, dim}),
                          tensor(batch), tensor(positions), tensor(indptr), tensor(ids), cache(kc),
                          cache(vc), layout, 1.0F, 1.0F, {});
    const auto at = [&](const std::vector<float>& data, std::int64_t page, std::int64_t slot,
                        std::int64_t h, std::int64_t d) {
      const std::int64_t index = layout == KvLayout::kNhd
                                     ? ((page * page_size + slot) * heads + h) * dim + d
                                     : ((page * heads + h) * page_size + slot) * dim + d;
      return data[static_cast<std::size_t>(index)];
    };
    std::int64_t written = 0;
    for (float x : kc) written += x != 0.0F ? 1 : 0;
    EXPECT_EQ(written, 2 * heads * dim);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t d = 0; d < dim; ++d) {
        EXPECT_EQ(at(kc, 0, 1, h, d), k[static_cast<std::size_t>((1 * heads + h) * dim + d)]);
        EXPECT_EQ(at(vc, 2, 0, h, d), v[static_cast<std::size_t>((69 * heads + h) * dim + d)]);
      }
    }
  }
}

TEST_F(CpuOps, AppendScalesRoundsAndSaturates) {
  std::vector<float> k{1000.0F, -1000.0F, 1.0625F, std::numeric_limits<float>::quiet_NaN()},
      v{0.5F, 3.0F, 448.0F, 464.1F};
  std::vector<std::int32_t> batch{0}, positions{0}, indptr{0, 1}, ids{0};
  std::vector<std::uint8_t> kc(4), vc(4);
  ops_->append_paged_kv(
      tensor(k, {1, 1, 4}), tensor(v, {1, 1, 4}), tensor(batch), tensor(positions), tensor(indptr),
      tensor(ids), Tensor::contiguous(kc.data(), DType::kF8E4M3, {1, 1, 1, 4}),
      Tensor::contiguous(vc.data(), DType::kF8E4M3, {1, 1, 1, 4}), KvLayout::kNhd, 2.0F, 0.5F, {});
  EXPECT_EQ(f8_e4m3_to_f32(kc[0]), 448.0F);
  EXPECT_EQ(f8_e4m3_to_f32(kc[1]), -448.0F);
  EXPECT_EQ(f8_e4m3_to_f32(kc[2]), 0.5F);  // 0.53125, a tie: to even
  EXPECT_TRUE(std::isnan(f8_e4m3_to_f32(kc[3])));
  EXPECT_EQ(f8_e4m3_to_f32(vc[0]), 1.0F);
  EXPECT_EQ(f8_e4m3_to_f32(vc[3]), 448.0F);
}

TEST_F(CpuOps, AppendRefusesBadIndicesBeforeItWrites) {
  std::vector<float> k(8, 1.0F), cache(16, 0.0F);
  const auto append = [&](std::vector<std::int32_t> batch, std::vector<std::int32_t> positions,
                          std::vector<std::int32_t> ids) {
    std::vector<std::int32_t> indptr{0, 1};
    ops_->append_paged_kv(tensor(k, {2, 1, 4}), tensor(k, {2, 1, 4}), tensor(batch),
                          tensor(positions), tensor(indptr), tensor(ids),
                          tensor(cache, {2, 2, 1, 4}), tensor(cache, {2, 2, 1, 4}), KvLayout::kNhd,
                          1, 1, {});
  };
  EXPECT_THROW(append({0, 1}, {0, 0}, {0}), Error);
  EXPECT_THROW(append({0, -2}, {0, 0}, {0}), Error);
  EXPECT_THROW(append({0, 0}, {0, 2}, {0}), Error);
  EXPECT_THROW(append({0, 0}, {0, -1}, {0}), Error);
  EXPECT_THROW(append({0, 0}, {0, 1}, {2}), Error);
  for (float x : cache) EXPECT_EQ(x, 0.0F);
  EXPECT_NO_THROW(append({0, 0}, {0, 1}, {1}));
}

TEST_F(CpuOps, RopeRotatesPairsAndCopiesTheRest) {
  for (RopeKind kind : {RopeKind::kHalf, RopeKind::kInterleaved}) {
    RopeSpec rope;
    rope.kind = kind;
    rope.rotary_dim = 6;
    std::vector<float> x{1, 2, 3, 4, 5, 6, 7, 8}, out(8);
    std::vector<std::int32_t> positions{1000003};
    ops_->apply_rope(tensor(x, {1, 1, 8}), tensor(positions), rope, tensor(out, {1, 1, 8}), {});
    for (int i = 0; i < 3; ++i) {
      const double angle = 1000003.0 * std::pow(10000.0, -2.0 * i / 6.0);
      const std::size_t a = static_cast<std::size_t>(kind == RopeKind::kHalf ? i : 2 * i);
      const std::size_t b = static_cast<std::size_t>(kind == RopeKind::kHalf ? i + 3 : 2 * i + 1);
      EXPECT_NEAR(out[a], x[a] * std::cos(angle) - x[b] * std::sin(angle), 2e-6);
      EXPECT_NEAR(out[b], x[b] * std::cos(angle) + x[a] * std::sin(angle), 2e-6);
    }
    EXPECT_EQ(out[6], 7.0F);
    EXPECT_EQ(out[7], 8.0F);
  }
}

}  // namespace
}  // namespace plait
