// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The state algebra, as every backend compiles it: identity, commutativity, associativity,
// emptiness, huge and tiny magnitudes.
#include "core/device/state.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/host_math.h"

namespace plait::device {
namespace {

constexpr float kEpsilon = std::numeric_limits<float>::epsilon();

/// A state of one element.
struct State {
  float o, lse;
};
constexpr State kEmpty{0.0F, -std::numeric_limits<float>::infinity()};

void showValue(const State& s, std::ostream& out) { out << "(" << s.o << ", " << s.lse << ")"; }

State merge(const State& a, const State& b) {
  const MergeWeights w = merge_weights<HostMath>(a.lse, b.lse);
  return {merge_element(w, a.o, b.o), w.lse};
}
State merge_at_once(const std::vector<State>& states) {
  float largest = neg_inf();
  for (const State& s : states) largest = std::max(largest, s.lse);
  const float base = merge_base(largest);
  float total = 0.0F;
  float sum = 0.0F;
  for (const State& s : states) {
    const float weight = merge_weight<HostMath>(s.lse, base);
    total += weight;
    if (weight != 0.0F) sum += weight * s.o;
  }
  const MergeResult result = merge_result<HostMath>(base, total);
  return {sum * result.scale, result.lse};
}

bool same_bits(const State& a, const State& b) {
  return std::bit_cast<std::uint32_t>(a.o) == std::bit_cast<std::uint32_t>(b.o) &&
         std::bit_cast<std::uint32_t>(a.lse) == std::bit_cast<std::uint32_t>(b.lse);
}

/// Equal but for `steps` roundings of numbers of the states' sizes. A rounded lse moves weights by
/// as much.
bool close(const State& a, const State& b, const std::vector<State>& of, float steps) {
  if (a.lse == neg_inf() || b.lse == neg_inf()) return same_bits(a, b);
  float o = 0.0F;
  float lse = 1.0F;
  for (const State& s : of) {
    if (s.lse == neg_inf()) continue;
    o = std::max(o, std::fabs(s.o));
    lse = std::max(lse, std::fabs(s.lse));
  }
  return std::fabs(a.lse - b.lse) <= steps * kEpsilon * lse &&
         std::fabs(a.o - b.o) <= steps * kEpsilon * o * lse;
}

/// Ordinary states, empty ones, and those of magnitudes up to `exponent` powers of two.
rc::Gen<State> states(int exponent) {
  return rc::gen::exec([exponent] {
    const auto number = [](int power) {
      const auto mantissa = static_cast<float>(*rc::gen::inRange(-(1 << 20), 1 << 20));
      return std::ldexp(mantissa, *rc::gen::inRange(-power, power + 1) - 20);
    };
    if (*rc::gen::inRange(0, 5) == 0) return kEmpty;
    return State{number(exponent), number(exponent)};
  });
}

TEST(StateAlgebra, TheEmptyStateIsNeutralInEveryBit) {
  EXPECT_TRUE(rc::check("on either side", [] {
    const State a = *states(120);
    RC_ASSERT(same_bits(merge(a, kEmpty), a));
    RC_ASSERT(same_bits(merge(kEmpty, a), a));
    // Whatever an empty state holds.
    const State rubbish{std::numeric_limits<float>::quiet_NaN(), neg_inf()};
    RC_ASSERT(same_bits(merge(a, rubbish), a));
    if (a.lse == neg_inf()) return;
    RC_ASSERT(same_bits(merge(rubbish, a), a));
    RC_ASSERT(same_bits(merge_at_once({rubbish, a, kEmpty}), a));
  }));
  EXPECT_TRUE(same_bits(merge(kEmpty, kEmpty), kEmpty));
  EXPECT_TRUE(same_bits(merge_at_once({kEmpty, kEmpty}), kEmpty));
  EXPECT_TRUE(same_bits(merge_at_once({}), kEmpty));
}

TEST(StateAlgebra, CommutesInEveryBit) {
  EXPECT_TRUE(rc::check("two states", [] {
    const State a = *states(120);
    const State b = *states(120);
    RC_ASSERT(same_bits(merge(a, b), merge(b, a)));
  }));
}

TEST(StateAlgebra, AssociatesWithinRounding) {
  EXPECT_TRUE(rc::check("three states", [] {
    const State a = *states(6);
    const State b = *states(6);
    const State c = *states(6);
    RC_ASSERT(close(merge(merge(a, b), c), merge(a, merge(b, c)), {a, b, c}, 8.0F));
  }));
}

TEST(StateAlgebra, ManyAtOnceAreAFoldWithinRounding) {
  EXPECT_TRUE(rc::check("up to 20 states", [] {
    const auto list = *rc::gen::resize(20, rc::gen::container<std::vector<State>>(states(6)));
    State folded = kEmpty;
    for (const State& s : list) folded = merge(folded, s);
    RC_ASSERT(
        close(merge_at_once(list), folded, list, 8.0F + 4.0F * static_cast<float>(list.size())));
  }));
}

TEST(StateAlgebra, HugeAndTinyMagnitudesStayFinite) {
  EXPECT_TRUE(rc::check("two states", [] {
    const State a = *states(120);
    const State b = *states(120);
    const State m = merge(a, b);
    if (a.lse == neg_inf() && b.lse == neg_inf()) return;
    RC_ASSERT(std::isfinite(m.o) && std::isfinite(m.lse));
    RC_ASSERT(m.lse >= std::max(a.lse, b.lse));
    const MergeWeights w = merge_weights<HostMath>(a.lse, b.lse);
    RC_ASSERT(w.a >= 0.0F && w.b >= 0.0F);
    RC_ASSERT(std::fabs(w.a + w.b - 1.0F) <= 2.0F * kEpsilon);
    RC_ASSERT((a.lse < b.lse ? w.a <= w.b : w.b <= w.a));
    const State at_once = merge_at_once({a, b});
    RC_ASSERT(std::isfinite(at_once.o) && std::isfinite(at_once.lse));
  }));
}

TEST(StateAlgebra, SumsAdd) {
  EXPECT_TRUE(rc::check("two partial sums", [] {
    const State a = *states(100);
    const State b = *states(100);
    const MergeWeights w = fold_weights<HostMath, true>(a.lse, b.lse);
    RC_ASSERT(merge_element(w, a.o, b.o) == a.o + b.o);
    RC_ASSERT(w.lse == 0.0F);
  }));
}

TEST(StateAlgebra, ASinkJoinsTheDenominatorOnce) {
  EXPECT_TRUE(rc::check("a state and a sink", [] {
    const State s = *states(120);
    const float sink = (*states(120)).lse;
    const float factor = sink_factor<HostMath>(s.lse, sink);
    RC_ASSERT(factor >= 0.0F && factor <= 1.0F);
    if (s.lse == neg_inf()) {
      RC_ASSERT(factor == 0.0F);
    } else if (sink == neg_inf()) {
      RC_ASSERT(factor == 1.0F);
    } else {
      const double exact =
          1.0 / (1.0 + std::exp(static_cast<double>(sink) - static_cast<double>(s.lse)));
      const double size = 1.0 + std::fabs(static_cast<double>(sink - s.lse));
      RC_ASSERT(std::fabs(static_cast<double>(factor) - exact) <=
                2.0 * static_cast<double>(kEpsilon) * std::min(size, 1e3) * exact + 1e-37);
    }
  }));
}

}  // namespace
}  // namespace plait::device
