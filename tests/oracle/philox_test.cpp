// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "oracle/philox.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace plait::oracle {
namespace {

using Block = std::array<std::uint32_t, 4>;

// Known answers of the Random123 distribution.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, LogarithmAndCosineAreAccurate) {
  for (std::uint64_t n : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{3},
                          std::uint64_t{1} << 31, (std::uint64_t{1} << 32) - 1}) {
    const double expected = std::log(static_cast<double>(n) / 4294967296.0);
    EXPECT_NEAR(log_of_fraction(n), expected, 4e-16 * std::fabs(expected)) << n;
  }
  EXPECT_EQ(log_of_fraction(std::uint64_t{1} << 32), 0.0);
  for (std::uint64_t n = 1; n < std::uint64_t{1} << 32; n += 1234567) {
    const double expected = std::log(static_cast<double>(n) / 4294967296.0);
    ASSERT_NEAR(log_of_fraction(n), expected, 4e-16 * std::fabs(expected)) << n;
    const double turn = 2 * std::numbers::pi * static_cast<double>(n) / 4294967296.0;
    ASSERT_NEAR(cos_of_turn(static_cast<std::uint32_t>(n)), std::cos(turn), 1e-15) << n;
  }
  EXPECT_EQ(cos_of_turn(0), 1.0);
  EXPECT_EQ(cos_of_turn(0x80000000u), -1.0);
}

// docs/formats.md prints these values; they may never change.
TEST(Philox, GoldenNormals) {
  struct Golden {
    std::uint64_t seed, index;
    std::uint32_t bits;
  };
  constexpr Golden kGolden[] = {
      {0, 0, 0x3f7dbb33u},                            // 0.991137683
      {0, 1, 0xbe1d5357u},                            // -0.153638229
      {1, 0, 0x3ec2c3e3u},                            // 0.380400747
      {42, 0, 0xbf785e5cu},                           // -0.97018981
      {42, 1, 0xbd95e030u},                           // -0.07318151
      {42, 4095, 0x3f1f6af0u},                        // 0.622725487
      {42, 4294967296, 0xbfd167b9u},                  // -1.63597786
      {9223372036854775807, 123456789, 0xbec77585u},  // -0.389568478
  };
  for (const Golden& golden : kGolden) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(normal_element(golden.seed, golden.index)), golden.bits)
        << "seed " << golden.seed << " index " << golden.index;
  }
}

// One hash over many elements pins every bit of the generator on this machine.
TEST(Philox, GoldenHash) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (std::uint64_t index = 0; index < 1'000'000; ++index) {
    hash = (hash ^ std::bit_cast<std::uint32_t>(normal_element(42, index))) * 0x100000001b3u;
  }
  EXPECT_EQ(hash, 0x439c95575911c02bu);
}

TEST(Philox, MomentsOfANormal) {
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  constexpr int kCount = 400'000;
  for (std::uint64_t index = 0; index < kCount; ++index) {
    const auto x = static_cast<double>(normal_element(7, index));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.008);
  EXPECT_NEAR(squares / kCount, 1.0, 0.012);
  EXPECT_NEAR(fourth / kCount, 3.0, 0.1);
}

}  // namespace
}  // namespace plait::oracle
