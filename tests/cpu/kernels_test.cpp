// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The SIMD kernels one by one, for every instruction set of this machine.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/convert.h"
#include "cpu/kernel_table.h"
#include "cpu/rope_table.h"

namespace plait::cpu {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3,
                             DType::kF8E5M2};

class CpuKernels : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    table_ = kernels_named(GetParam());
    if (table_ == nullptr) GTEST_SKIP() << GetParam() << " is not available here";
  }
  const KernelTable* table_ = nullptr;
};

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

TEST_P(CpuKernels, LoadsAreExactForEveryEncoding) {
  for (DType dtype : kDTypes) {
    if (dtype == DType::kF32) continue;
    const int size = size_of(dtype);
    const std::uint32_t count = size == 1 ? 256 : 65536;
    std::vector<unsigned char> bytes(count * static_cast<std::uint32_t>(size));
    for (std::uint32_t i = 0; i < count; ++i) {
      std::memcpy(bytes.data() + i * static_cast<std::uint32_t>(size), &i,
                  static_cast<std::size_t>(size));
    }
    std::vector<float> out(count + 64);
    const void* row = bytes.data();
    const bool finite =
        table_->load_rows[static_cast<int>(dtype)](&row, 1, static_cast<int>(count), out.data(), 0);
    EXPECT_FALSE(finite) << to_string(dtype);
    for (std::uint32_t i = 0; i < count; ++i) {
      ASSERT_TRUE(same(out[i], static_cast<float>(decode(dtype, i))))
          << to_string(dtype) << " " << i;
    }
  }
}

TEST_P(CpuKernels, StoresRoundToNearestEven) {
  std::mt19937 random(3);
  std::vector<float> values;
  for (int i = 0; i < 4000; ++i)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  for (int i = 0; i < 4000; ++i)
    values.push_back(static_cast<float>(random() % 100000) * 0.01F - 300.0F);
  values.insert(values.end(), {0.0F, -0.0F, std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN(), 65519.99F, 65520.0F});
  for (DType dtype : kDTypes) {
    std::vector<char> bytes(values.size() * 4);
    table_->store_row[static_cast<int>(dtype)](values.data(), static_cast<int>(values.size()),
                                               bytes.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::vector<char> want(4);
      store_element(dtype, want.data(), 0, values[i], overflow_of(dtype));
      const double got = load_element(dtype, bytes.data(), static_cast<std::int64_t>(i));
      const double expected = load_element(dtype, want.data(), 0);
      ASSERT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected)))
          << to_string(dtype) << " of " << values[i] << ": " << got << " " << expected;
    }
  }
}

TEST_P(CpuKernels, TailsReadNothingBeyondARow) {
  // Each row ends where its allocation ends, so that a sanitizer sees a stray read.
  for (DType dtype : kDTypes) {
    for (int dim = 1; dim < 40; ++dim) {
      std::vector<char> bytes(static_cast<std::size_t>(dim * size_of(dtype)), 0);
      bytes.shrink_to_fit();
      std::vector<float> out(64, 1.0F);
      const void* row = bytes.data();
      EXPECT_TRUE(table_->load_rows[static_cast<int>(dtype)](&row, 1, dim, out.data(), 0));
      const int padded = (dim + table_->lanes - 1) / table_->lanes * table_->lanes;
      for (int i = 0; i < padded; ++i) EXPECT_EQ(out[static_cast<std::size_t>(i)], 0.0F);
    }
  }
}

TEST_P(CpuKernels, GemmBitsDoNotDependOnTheTile) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const int k = 37;
  const int n = 7 * table_->lanes;
  const int most = 23;
  std::vector<float> a(static_cast<std::size_t>(most * k)), b(static_cast<std::size_t>(k * n)),
      whole(static_cast<std::size_t>(most * n));
  for (float& x : a) x = normal(random);
  for (float& x : b) x = normal(random);
  table_->gemm(most, n, k, a.data(), k, 1, b.data(), n, whole.data(), n, nullptr);
  for (int row = 0; row < most; ++row) {
    for (int column = 0; column < n; ++column) {
      float sum = 0.0F;
      for (int i = 0; i < k; ++i) {
        sum = std::fma(a[static_cast<std::size_t>(row * k + i)],
                       b[static_cast<std::size_t>(i * n + column)], sum);
      }
      // SSE4 has no fused multiply-add; there only the tiles must agree.
      if (std::string(table_->name) != "sse4") {
        ASSERT_EQ(whole[static_cast<std::size_t>(row * n + column)], sum);
      }
    }
  }
  for (int m : {1, 2, 3, 5, 6, 7, 11}) {
    std::vector<float> part(static_cast<std::size_t>(m * n));
    table_->gemm(m, table_->lanes, k, a.data() + k, k, 1, b.data() + table_->lanes, n, part.data(),
                 n, nullptr);
    for (int row = 0; row < m; ++row) {
      for (int column = 0; column < table_->lanes; ++column) {
        ASSERT_EQ(part[static_cast<std::size_t>(row * n + column)],
                  whole[static_cast<std::size_t>((row + 1) * n + column + table_->lanes)]);
      }
    }
  }
}

TEST_P(CpuKernels, SoftmaxTile) {
  const int rows = 2 * table_->lanes;
  const int keys = 13;
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> s(static_cast<std::size_t>(keys * rows));
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  for (float& x : s) x = normal(random);
  for (int key = 0; key < keys; ++key)
    s[static_cast<std::size_t>(key * rows)] = -infinity;  // an empty row
  s[1] = -1e30F;
  const std::vector<float> logits = s;
  std::vector<float> m(static_cast<std::size_t>(rows), -infinity),
      l(static_cast<std::size_t>(rows), 0.0F), alpha(static_cast<std::size_t>(rows));
  TileStep step;
  step.s = s.data();
  step.num_keys = keys;
  step.num_rows = rows;
  step.ld = rows;
  step.m = m.data();
  step.l = l.data();
  step.alpha = alpha.data();
  table_->softmax_tile(step);
  EXPECT_EQ(l[0], 0.0F);
  EXPECT_EQ(m[0], -infinity);
  for (int row = 1; row < rows; ++row) {
    double sum = 0.0;
    float max = -infinity;
    for (int key = 0; key < keys; ++key)
      max = std::max(max, logits[static_cast<std::size_t>(key * rows + row)]);
    EXPECT_EQ(m[static_cast<std::size_t>(row)], max);
    for (int key = 0; key < keys; ++key) {
      const float below = logits[static_cast<std::size_t>(key * rows + row)] - max;
      const double want = std::exp2(static_cast<double>(below));
      EXPECT_NEAR(s[static_cast<std::size_t>(key * rows + row)], want, 3e-7 * want + 2e-38);
      sum += want;
    }
    EXPECT_NEAR(l[static_cast<std::size_t>(row)], sum, 1e-6 * sum);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuKernels,
                         testing::Values("avx512_bf16", "avx512", "avx2", "sse4", "neon"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(CpuKernelChoice, KnownNamesOnly) {
  EXPECT_EQ(kernels_named("mmx"), nullptr);
  EXPECT_NE(kernels_named(kernels().name), nullptr);
}

TEST(CpuRopeTable, AnglesAreAccurateToAMillionPositions) {
  RopeSpec spec;
  spec.kind = RopeKind::kHalf;
  const int dim = 128;
  const RopeTable table(spec, dim, std::int64_t{1} << 20);
  const RopeTable direct(spec, dim, 0);
  std::mt19937 random(11);
  std::vector<float> cos(64), sin(64);
  for (int trial = 0; trial < 300; ++trial) {
    const std::int64_t pos =
        trial < 2 ? trial * ((1 << 20) - 1) : static_cast<std::int64_t>(random() % (1U << 20));
    for (const RopeTable* t : {&table, &direct}) {
      t->angles(kernels(), pos, cos.data(), sin.data());
      for (int i = 0; i < 64; ++i) {
        const long double angle =
            static_cast<long double>(pos) * std::pow(10000.0L, -2.0L * i / dim);
        // The angle's error, from the error of its cosine and sine.
        const double error =
            std::hypot(static_cast<double>(cos[static_cast<std::size_t>(i)] - std::cos(angle)),
                       static_cast<double>(sin[static_cast<std::size_t>(i)] - std::sin(angle)));
        ASSERT_LT(error, 1e-6) << "position " << pos << " pair " << i;
      }
    }
  }
}

}  // namespace
}  // namespace plait::cpu
