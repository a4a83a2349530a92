// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace plait::serve {

/// The finaliser of SplitMix64: a bijection of 64-bit words with full avalanche.
constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr std::uint64_t hash_combine(std::uint64_t a, std::uint64_t b) noexcept {
  return mix64(mix64(a + 0x9e3779b97f4a7c15ULL) ^ (b + 0x9e3779b97f4a7c15ULL));
}

/// SplitMix64. The library's distributions are not used with it: their output differs between
/// standard libraries, and a seed must mean the same workload everywhere.
class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) noexcept : state_(seed) {}
  constexpr std::uint64_t next() noexcept { return mix64(state_ += 0x9e3779b97f4a7c15ULL); }
  /// Uniform in [0, 1).
  constexpr double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  /// Uniform in [low, high]; the modulo bias is below 2^-32 for ranges under 2^32.
  constexpr std::int64_t integer(std::int64_t low, std::int64_t high) noexcept {
    const auto span = static_cast<std::uint64_t>(high - low) + 1;
    return low + static_cast<std::int64_t>(span == 0 ? next() : next() % span);
  }

 private:
  std::uint64_t state_;
};

}  // namespace plait::serve
