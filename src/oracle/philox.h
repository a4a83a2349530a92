// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The normal generator of problem files: the same bits on every machine. Nothing here calls libm
// (whose log and cos differ between machines in the last place) except the correctly rounded
// square root; the translation unit is compiled without floating-point contraction.
#pragma once

#include <array>
#include <cstdint>

namespace plait::oracle {

/// One block of Philox4x32-10 (Salmon et al., SC11): ten rounds.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept;

/// Natural logarithm of n / 2^32 for 1 <= n <= 2^32, in double.
double log_of_fraction(std::uint64_t n) noexcept;

/// cos(2 pi n / 2^32), in double.
double cos_of_turn(std::uint32_t n) noexcept;

/// Element `index` of the standard normal stream of `seed`. docs/formats.md gives the mapping:
/// block = philox(counter = (index low, index high, 0, 0), key = (seed low, seed high)),
/// u = (x0 + 1) / 2^32, z = sqrt(-2 ln u) cos(2 pi x1 / 2^32), rounded to f32.
float normal_element(std::uint64_t seed, std::uint64_t index) noexcept;

}  // namespace plait::oracle
