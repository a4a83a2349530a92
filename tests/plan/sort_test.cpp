// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/sort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "support/seed.h"

namespace plait::planning {
namespace {

/// `count` keys in [0, range).
std::vector<int> draw_keys(std::mt19937_64& random, std::size_t count, int range) {
  std::vector<int> keys(count);
  for (int& key : keys) key = static_cast<int>(random() % static_cast<std::uint64_t>(range));
  return keys;
}

TEST(PlanSort, OrdersIdsAsAStableSortDoes) {
  const test::Seed seed(5);
  std::mt19937_64 random(seed.value());
  for (const std::size_t count : {0, 1, 2, 31, 132, 264, 1000}) {
    for (const int range : {1, 3, 256, 1024}) {
      const std::vector<int> keys = draw_keys(random, count, range);
      const auto by_key = [&](std::int32_t a, std::int32_t b) {
        return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)];
      };
      std::vector<std::int32_t> ids(count);
      std::iota(ids.begin(), ids.end(), 0);
      std::vector<std::int32_t> sorted = ids;
      std::stable_sort(sorted.begin(), sorted.end(), by_key);
      std::vector<std::int32_t> out(count);
      if (range <= 256) {
        std::vector<std::uint8_t> bytes(count);
        const int least = keys.empty() ? 255 : *std::min_element(keys.begin(), keys.end());
        const auto below = static_cast<std::uint8_t>(least / 2);
        EXPECT_EQ(
            sort_by_byte(out, bytes.data(), below,
                         [&](std::int32_t id) {
                           return static_cast<std::uint8_t>(keys[static_cast<std::size_t>(id)]);
                         }),
            least);
        EXPECT_EQ(out, sorted) << count << " bytes below " << range << ", " << seed.repro();
      }
      std::shuffle(ids.begin(), ids.end(), random);
      sorted = ids;
      std::stable_sort(sorted.begin(), sorted.end(), by_key);
      std::vector<std::uint16_t> ten_bits(count);
      std::vector<std::int32_t> half(count);
      sort_by_ten_bits(ids, out.data(), ten_bits.data(), half.data(), [&](std::int32_t id) {
        return static_cast<std::uint16_t>(keys[static_cast<std::size_t>(id)]);
      });
      EXPECT_EQ(out, sorted) << count << " keys below " << range << ", " << seed.repro();
    }
  }
}

}  // namespace
}  // namespace plait::planning
