// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/compose.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "serve/hash.h"

namespace plait::serve {
namespace {

ComposeCosts costs() {
  return {.group_size = 4, .query_tile = 64, .kv_bytes_per_token = 512, .state_bytes = 516};
}

TEST(Compose, PaysForDecodesOfOneLongPromptAndNotForOneRequest) {
  EXPECT_GT(compose_gain(costs(), 16, 16, 4096), 0);
  EXPECT_LE(compose_gain(costs(), 1, 1, 4096), 0);
}

TEST(Compose, DoesNotPayForAShortPrefixOfManyRows) {
  // 15 rows x 4 heads fill one tile each: sharing 16 tokens does not repay 60 rows of states.
  EXPECT_LE(compose_gain(costs(), 2, 30, 16), 0);
}

TEST(Compose, TakesTheDeepestPrefixThatEveryoneShares) {
  const std::int32_t a[] = {0, 1, 2, 3};
  const std::int32_t b[] = {0, 1, 2, 4};
  const std::int32_t c[] = {5};
  const Candidate candidates[] = {{1, c}, {1, a}, {1, {}}, {1, b}};
  Composer composer(costs());
  composer.compose(candidates, 6);
  ASSERT_EQ(composer.groups().size(), 1U);
  EXPECT_EQ(composer.groups()[0].blocks, 3);
  EXPECT_EQ(std::vector<std::int32_t>(composer.order().begin(), composer.order().end()),
            (std::vector<std::int32_t>{1, 3, 0, 2}));
}

TEST(Compose, LeavesOutChunksThatFillTheirOwnTiles) {
  const std::int32_t blocks[] = {0, 1, 2, 3};
  const Candidate candidates[] = {{512, blocks}, {512, blocks}};
  Composer composer(costs());
  composer.compose(candidates, 4);
  EXPECT_TRUE(composer.groups().empty());
}

TEST(Compose, GroupsAreSharersOnRandomTries) {
  EXPECT_TRUE(rc::check("random tries", [] {
    Random random(*rc::gen::arbitrary<std::uint64_t>());
    // A block id encodes its path in a binary trie, so equal ids are equal prefixes.
    const std::int64_t count = random.integer(0, 40);
    std::vector<std::vector<std::int32_t>> paths(static_cast<std::size_t>(count));
    std::vector<Candidate> candidates;
    for (auto& path : paths) {
      std::int32_t id = 1;
      for (std::int64_t depth = random.integer(0, 8); depth > 0; --depth) {
        id = 2 * id + static_cast<std::int32_t>(random.integer(0, 1));
        path.push_back(id);
      }
      candidates.push_back({static_cast<std::int32_t>(random.integer(1, 30)), path});
    }
    Composer composer(costs());
    for (int round = 0; round < 2; ++round) {  // the second meets used memory
      composer.compose(candidates, 1024);
      std::vector<std::int32_t> sorted(composer.order().begin(), composer.order().end());
      std::sort(sorted.begin(), sorted.end());
      RC_ASSERT(std::ssize(sorted) == count);
      for (std::int32_t i = 0; i < count; ++i) RC_ASSERT(sorted[static_cast<std::size_t>(i)] == i);
      std::int32_t end = 0;
      for (const PrefixGroup& group : composer.groups()) {
        RC_ASSERT(group.begin == end && group.end - group.begin >= 2 && group.blocks >= 1);
        end = group.end;
        const auto member = [&](std::int32_t i) -> const std::vector<std::int32_t>& {
          return paths[static_cast<std::size_t>(composer.order()[static_cast<std::size_t>(i)])];
        };
        for (std::int32_t i = group.begin; i < group.end; ++i) {
          RC_ASSERT(std::ssize(member(i)) >= group.blocks);
          RC_ASSERT(std::equal(member(i).begin(), member(i).begin() + group.blocks,
                               member(group.begin).begin()));
        }
      }
    }
  }));
}

}  // namespace
}  // namespace plait::serve
