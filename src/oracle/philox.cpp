// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "oracle/philox.h"

#include <bit>
#include <cmath>

namespace plait::oracle {
namespace {

// Reciprocals, each rounded once: of 2k + 1, of (2k - 1)(2k) and of (2k)(2k + 1).
constexpr std::array<double, 12> kOdd = {1.0,        1.0 / 3.0,  1.0 / 5.0,  1.0 / 7.0,
                                         1.0 / 9.0,  1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0,
                                         1.0 / 17.0, 1.0 / 19.0, 1.0 / 21.0, 1.0 / 23.0};
constexpr std::array<double, 10> kCosine = {0.0,         1.0 / 2.0,  1.0 / 12.0,  1.0 / 30.0,
                                            1.0 / 56.0,  1.0 / 90.0, 1.0 / 132.0, 1.0 / 182.0,
                                            1.0 / 240.0, 1.0 / 306.0};
constexpr std::array<double, 10> kSine = {0.0,         1.0 / 6.0,   1.0 / 20.0,  1.0 / 42.0,
                                          1.0 / 72.0,  1.0 / 110.0, 1.0 / 156.0, 1.0 / 210.0,
                                          1.0 / 272.0, 1.0 / 342.0};

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept {
  constexpr std::uint64_t kMul0 = 0xD2511F53u;
  constexpr std::uint64_t kMul1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = kMul0 * counter[0];
    const std::uint64_t p1 = kMul1 * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

double log_of_fraction(std::uint64_t n) noexcept {
  // n / 2^32 = f * 2^exponent with f in [1/sqrt(2), sqrt(2)); log f = 2 atanh((f-1)/(f+1)).
  int exponent = static_cast<int>(std::bit_width(n)) - 1;
  double f = static_cast<double>(n) / static_cast<double>(std::uint64_t{1} << exponent);
  exponent -= 32;
  if (f > 1.4142135623730951) {
    f = f * 0.5;
    exponent += 1;
  }
  const double t = (f - 1.0) / (f + 1.0);
  const double t2 = t * t;
  // t2 <= 0.0295, so the first term left out is below 2^-60 of the sum.
  double sum = 0.0;
  for (int k = 11; k >= 0; --k) {
    const double product = sum * t2;
    sum = product + kOdd[static_cast<std::size_t>(k)];
  }
  // ln 2 in two parts: the high part has 20 trailing zero bits, so exponent * high is exact.
  constexpr double kLn2High = 0x1.62e42fee00000p-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  const double e = static_cast<double>(exponent);
  const double low = e * kLn2Low;
  const double high = e * kLn2High;
  const double series = 2.0 * t * sum;
  return high + (series + low);
}

double cos_of_turn(std::uint32_t n) noexcept {
  // The nearest multiple of a quarter turn is taken off in integers, so the reduction is exact.
  const std::uint32_t quadrant = ((n >> 29) + 1) >> 1;  // 0..4
  const std::int64_t rest =
      static_cast<std::int64_t>(n) - (static_cast<std::int64_t>(quadrant) << 30);
  constexpr double kAnglePerUnit = 0x1.921fb54442d18p-30;  // 2 pi / 2^32
  const double x = static_cast<double>(rest) * kAnglePerUnit;
  const double x2 = x * x;  // at most (pi/4)^2
  // Horner's form of the Taylor series; term k divides by (2k-1)(2k) or (2k)(2k+1), rounded once.
  double sum = 1.0;
  if ((quadrant & 1) == 0) {
    for (int k = 9; k >= 1; --k) {
      const double factor = x2 * kCosine[static_cast<std::size_t>(k)];
      const double product = factor * sum;
      sum = 1.0 - product;
    }
  } else {
    for (int k = 9; k >= 1; --k) {
      const double factor = x2 * kSine[static_cast<std::size_t>(k)];
      const double product = factor * sum;
      sum = 1.0 - product;
    }
    sum = x * sum;
  }
  // cos(quadrant * pi/2 + x): cos x, -sin x, -cos x, sin x.
  return quadrant == 1 || quadrant == 2 ? -sum : sum;
}

float normal_element(std::uint64_t seed, std::uint64_t index) noexcept {
  const auto block = philox4x32(
      {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0u, 0u},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const double radius = std::sqrt(-2.0 * log_of_fraction(std::uint64_t{block[0]} + 1));
  const double value = radius * cos_of_turn(block[1]);
  return static_cast<float>(value);
}

}  // namespace plait::oracle
