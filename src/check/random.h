// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

namespace plait::check {

/// SplitMix64: small, seeded, the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() noexcept {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  /// Uniform in [low, high].
  std::int64_t integer(std::int64_t low, std::int64_t high) noexcept {
    const auto span = static_cast<std::uint64_t>(high - low) + 1;
    const std::uint64_t offset = span == 0 ? next() : next() % span;  // 0: all of them
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + offset);
  }
  bool chance(int percent) noexcept { return integer(0, 99) < percent; }
  template <class T>
  T pick(std::initializer_list<T> choices) noexcept {
    return *(choices.begin() + integer(0, static_cast<std::int64_t>(choices.size()) - 1));
  }

 private:
  std::uint64_t state_;
};

}  // namespace plait::check
