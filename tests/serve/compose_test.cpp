// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/compose.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>

#include "plan/reference_target.h"
#include "plan/task.h"
#include "serve/hash.h"

namespace plait::serve {
namespace {

AttentionSpec spec() {
  AttentionSpec spec;
  spec.num_qo_heads = 32;
  spec.num_kv_heads = 8;
  spec.head_dim_qk = spec.head_dim_vo = 128;
  spec.kv_dtype = DType::kBF16;
  return spec;
}

ComposeCosts costs() {
  return {.target = reference_target(spec()), .group_size = 4, .num_kv_heads = 8};
}

using Path = std::vector<std::int32_t>;

/// The first `length` blocks of text `text`, whose ids nothing else uses.
Path blocks_of(std::int32_t text, std::int32_t length) {
  Path path(static_cast<std::size_t>(length));
  std::iota(path.begin(), path.end(), 1000 * text);
  return path;
}

Path operator+(Path a, const Path& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A decode of one token, 100 tokens after its last shared block.
Candidate decode(const Path& path) {
  return {1, static_cast<std::int32_t>(path.size()) * 512 + 100, path};
}

TEST(Compose, PaysForDecodesOfOneLongPromptAndNotForOneRequest) {
  const Path prompt = blocks_of(1, 8);
  Composer composer(costs());
  std::vector<Candidate> candidates(16, decode(prompt));
  composer.compose(candidates);
  ASSERT_EQ(composer.groups().size(), 1U);
  EXPECT_EQ(composer.groups()[0].end, 16);
  EXPECT_EQ(composer.groups()[0].last_block, 8);
  candidates.resize(1);
  composer.compose(candidates);
  EXPECT_TRUE(composer.groups().empty());
  EXPECT_EQ(composer.num_levels(), 0);
}

TEST(Compose, TakesTheDeepestPrefixThatEveryoneShares) {
  const Path a = blocks_of(1, 40) + blocks_of(2, 1);
  const Path b = blocks_of(1, 40) + blocks_of(3, 1);
  const Path c = blocks_of(4, 1);
  const Candidate candidates[] = {decode(c), decode(a), {1, 5, {}}, decode(b)};
  Composer composer(costs());
  composer.compose(candidates);
  ASSERT_EQ(composer.groups().size(), 1U);
  EXPECT_EQ(composer.groups()[0].last_block, 40);
  EXPECT_EQ(Path(composer.order().begin(), composer.order().end()), (Path{1, 3, 0, 2}));
  EXPECT_EQ(composer.blocks_read(1), 40);
  EXPECT_EQ(composer.blocks_read(2), 0);
}

TEST(Compose, ATreeOfLongTextsBecomesLevels) {
  // A system prompt, two documents, two conversations about each, four samples of each.
  std::vector<Path> paths;
  std::vector<Candidate> candidates;
  for (std::int32_t i = 0; i < 16; ++i) {
    paths.push_back(blocks_of(1, 32) + blocks_of(2 + i / 8, 24) + blocks_of(4 + i / 4, 16));
  }
  for (const Path& path : paths) candidates.push_back(decode(path));
  std::reverse(candidates.begin(), candidates.end());
  Composer composer(costs());
  composer.compose(candidates);
  ASSERT_EQ(composer.num_levels(), 3);
  ASSERT_EQ(composer.groups().size(), 1U + 2U + 4U);
  EXPECT_EQ(composer.groups()[0].end - composer.groups()[0].begin, 16);
  EXPECT_EQ(composer.groups()[1].first_block, 32);
  EXPECT_EQ(composer.groups()[1].last_block, 56);
  EXPECT_EQ(composer.groups()[6].last_block, 72);
}

TEST(Compose, AShortStretchOfATreeIsReadByEachBranch) {
  // One block in common before texts of 32: an item of its own would cost more than it reads.
  ComposeCosts slow_start = costs();
  for (TileClass& tile : slow_start.target.classes) tile.cost.per_item = 1 << 19;
  std::vector<Path> paths;
  std::vector<Candidate> candidates;
  for (std::int32_t i = 0; i < 16; ++i) {
    paths.push_back(blocks_of(1, 1) + blocks_of(2 + i / 8, 32));
  }
  for (const Path& path : paths) candidates.push_back(decode(path));
  Composer composer(slow_start);
  composer.compose(candidates);
  ASSERT_EQ(composer.num_levels(), 1);
  ASSERT_EQ(composer.groups().size(), 2U);
  EXPECT_EQ(composer.groups()[1].first_block, 0);
  EXPECT_EQ(composer.groups()[1].last_block, 33);
}

TEST(Compose, CountsWhatALargerTileCosts) {
  // Where 64 rows cost ten times as much as 16, five decodes of four heads read on their own.
  ComposeCosts expensive = costs();
  expensive.target.num_classes = 2;
  expensive.target.classes[0] = {16, 64, {4000, 800, 372, 1600}};
  expensive.target.classes[1] = {64, 64, {4000, 800, 3745, 1600}};
  const Path prompt = blocks_of(1, 8);
  Composer composer(expensive);
  composer.compose(std::vector<Candidate>(4, decode(prompt)));
  EXPECT_EQ(composer.groups().size(), 1U);
  composer.compose(std::vector<Candidate>(5, decode(prompt)));
  EXPECT_EQ(composer.groups().size(), 0U);
}

TEST(Compose, LeavesOutChunksThatFillTheirOwnTiles) {
  const Path prompt = blocks_of(1, 8);
  Composer composer(costs());
  composer.compose(std::vector<Candidate>(2, Candidate{512, 5000, prompt}));
  EXPECT_TRUE(composer.groups().empty());
}

TEST(Compose, LeavesAStepAloneThatWouldHardlyGain) {
  const Path prompt = blocks_of(1, 2);
  std::vector<Candidate> candidates(2, Candidate{1, 1500, prompt});
  Composer composer(costs());
  composer.compose(candidates);
  EXPECT_EQ(composer.groups().size(), 1U);
  candidates.push_back({2048, 60000, {}});
  composer.compose(candidates);
  EXPECT_TRUE(composer.groups().empty());
}

TEST(Compose, AnotherTileClassHasToBeWorthTheWorkersThatItTakes) {
  // Decodes of one prompt beside a prompt: read together they are a class of 64 rows between two
  // others. One worker of 64 hardly matters; one of 8 costs more than the sum of costs saves.
  const Path prompt = blocks_of(1, 16);
  std::vector<Candidate> candidates(8, decode(prompt));
  candidates.push_back({512, 20000, {}});
  ComposeCosts few = costs();
  few.num_kv_heads = 1;
  few.target.num_workers = 64;
  Composer many_workers(few);
  many_workers.compose(candidates);
  EXPECT_EQ(many_workers.groups().size(), 1U);
  few.target.num_workers = 8;
  Composer few_workers(few);
  few_workers.compose(candidates);
  EXPECT_TRUE(few_workers.groups().empty());
  // Threads run the lists of all classes, so nothing is lost by one more.
  few.target.shared_workers = true;
  Composer threads(few);
  threads.compose(candidates);
  EXPECT_EQ(threads.groups().size(), 1U);
}

/// Costs by the definition, over a trie that the test builds itself.
class Exhaustive {
 public:
  Exhaustive(const ComposeCosts& costs, const std::vector<Candidate>& candidates)
      : costs_(costs), candidates_(candidates) {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      for (std::size_t depth = 1; depth <= candidates[i].blocks.size(); ++depth) {
        const auto prefix = candidates[i].blocks.first(depth);
        members_[Path(prefix.begin(), prefix.end())].push_back(i);
      }
    }
    // Prefixes that end where members part: reading a shorter one together is never cheaper.
    for (auto at = members_.begin(); at != members_.end();) {
      const auto& prefix = *at;
      const bool parts = std::none_of(members_.begin(), members_.end(), [&](const auto& other) {
        return other.first.size() == prefix.first.size() + 1 && other.second == prefix.second;
      });
      at = prefix.second.size() < 2 || !parts ? members_.erase(at) : std::next(at);
    }
  }

  std::size_t num_nodes() const { return members_.size(); }

  using Classes = std::array<std::int64_t, 3>;
  static std::int64_t sum(const Classes& costs) {
    return std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
  }

  /// Of reading together the nodes in `chosen` (by their place in the map), by tile class; nothing:
  /// too many levels.
  std::optional<Classes> cost(std::uint32_t chosen) const {
    std::vector<std::int64_t> read(candidates_.size(), 0);
    std::vector<int> levels(candidates_.size(), 0);
    Classes total{};
    for (std::size_t depth = 1; depth < 16; ++depth) {  // outermost first
      std::size_t place = 0;
      for (const auto& [path, who] : members_) {
        if ((chosen >> place++ & 1U) == 0 || path.size() != depth) continue;
        std::int32_t rows = 0;
        for (const std::size_t i : who) {
          rows += candidates_[i].rows;
          if (++levels[i] > Composer::kMaxSharedLevels) return std::nullopt;
        }
        const std::int64_t end = std::ssize(path);
        add_read(rows, (end - read[who[0]]) * costs_.block_tokens, true, total);
        for (const std::size_t i : who) read[i] = end;
      }
    }
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      add_read(candidates_[i].rows, candidates_[i].kv_len - read[i] * costs_.block_tokens,
               read[i] > 0, total);
    }
    return total;
  }

  /// Whether the classes' workers, in the best split of all teams of 8, end at least 1/64 before
  /// workers that share the flat costs ideally.
  bool pays(const Classes& composed) const {
    const std::int64_t flat = sum(*cost(0));
    const int teams = costs_.target.num_workers / 8;
    double longest = 1e300;
    for (int a = 0; a <= teams; ++a) {
      for (int b = 0; a + b <= teams; ++b) {
        const Classes shares = {a, b, teams - a - b};
        double most = 0;
        for (std::size_t c = 0; c < 3; ++c) {
          if (composed[c] == 0) continue;
          most = std::max(most, shares[c] == 0 ? 1e300
                                               : static_cast<double>(composed[c]) /
                                                     static_cast<double>(shares[c]));
        }
        longest = std::min(longest, most);
      }
    }
    return longest * teams < static_cast<double>(flat) * 63 / 64;
  }

  void add_read(std::int32_t rows, std::int64_t tokens, bool state, Classes& costs) const {
    for (std::int32_t left = rows * costs_.group_size; left > 0;) {
      const auto& classes = costs_.target.classes;
      const std::size_t c = left <= 16 ? 0 : left <= 64 ? 1 : 2;
      const std::int32_t fused = std::min(left, classes[c].q_tile);
      costs[c] += planning::item_cost(classes[c], tokens, state ? fused : 0);
      left -= fused;
    }
  }

  /// Which of the nodes a group stands for.
  std::uint32_t bit_of(const Candidate& member, const PrefixGroup& group) const {
    const auto prefix = member.blocks.first(static_cast<std::size_t>(group.last_block));
    const auto it = members_.find(Path(prefix.begin(), prefix.end()));
    return it == members_.end() ? 0 : 1U << std::distance(members_.begin(), it);
  }

 private:
  ComposeCosts costs_;
  const std::vector<Candidate>& candidates_;
  std::map<Path, std::vector<std::size_t>> members_;
};

TEST(Compose, IsTheCheapestOfAllCompositionsOnRandomTries) {
  EXPECT_TRUE(rc::check("random tries", [] {
    Random random(*rc::gen::arbitrary<std::uint64_t>());
    // An id encodes its path in a binary trie of texts, so equal ids are equal prefixes. A text has
    // several blocks.
    const std::int64_t count = random.integer(0, 9);
    const std::int64_t length = random.integer(1, 3);
    std::vector<Path> paths(static_cast<std::size_t>(count));
    std::vector<Candidate> candidates;
    for (Path& path : paths) {
      std::int32_t text = 1;
      for (std::int64_t depth = random.integer(0, 4); depth > 0; --depth) {
        text = 2 * text + static_cast<std::int32_t>(random.integer(0, 1));
        for (std::int64_t b = 0; b < length; ++b) {
          path.push_back(text * 4 + static_cast<std::int32_t>(b));
        }
      }
      const auto rows = static_cast<std::int32_t>(random.integer(1, 20));
      candidates.push_back({rows,
                            static_cast<std::int32_t>(std::ssize(path) * 512) + rows +
                                static_cast<std::int32_t>(random.integer(0, 2000)),
                            path});
    }
    const Exhaustive all(costs(), candidates);
    RC_PRE(all.num_nodes() <= 10);
    std::int64_t best = Exhaustive::sum(*all.cost(0));
    bool pays = false;   // some cheapest composition does
    bool wastes = true;  // some does not
    for (std::uint32_t chosen = 0; chosen < 1U << all.num_nodes(); ++chosen) {
      const auto cost = all.cost(chosen);
      if (!cost || Exhaustive::sum(*cost) > best) continue;
      if (Exhaustive::sum(*cost) < best) pays = wastes = false;
      best = Exhaustive::sum(*cost);
      (all.pays(*cost) ? pays : wastes) = true;
    }
    Composer composer(costs());
    for (int round = 0; round < 2; ++round) {  // the second meets used memory
      composer.compose(candidates);
      const Path order(composer.order().begin(), composer.order().end());
      Path sorted = order;
      std::sort(sorted.begin(), sorted.end());
      RC_ASSERT(std::ssize(sorted) == count);
      for (std::int32_t i = 0; i < count; ++i) RC_ASSERT(sorted[static_cast<std::size_t>(i)] == i);
      std::uint32_t chosen = 0;
      std::vector<std::int32_t> read(candidates.size(), 0);
      std::vector<std::int32_t> levels(candidates.size(), 0);
      for (const PrefixGroup& group : composer.groups()) {
        RC_ASSERT(group.end - group.begin >= 2 && group.last_block > group.first_block);
        for (std::int32_t i = group.begin; i < group.end; ++i) {
          const auto place = static_cast<std::size_t>(i);
          const Candidate& member = candidates[static_cast<std::size_t>(order[place])];
          RC_ASSERT(read[place] == group.first_block && levels[place] == group.level);
          read[place] = group.last_block;
          ++levels[place];
          const std::uint32_t bit = all.bit_of(member, group);
          RC_ASSERT(bit != 0U);
          chosen |= bit;
        }
      }
      for (std::int32_t i = 0; i < count; ++i) {
        RC_ASSERT(composer.blocks_read(i) == read[static_cast<std::size_t>(i)]);
      }
      if (chosen == 0) {
        RC_ASSERT(wastes);
      } else {
        RC_ASSERT(pays);
        RC_ASSERT(Exhaustive::sum(*all.cost(chosen)) == best);
        RC_ASSERT(all.pays(*all.cost(chosen)));
      }
    }
  }));
}

}  // namespace
}  // namespace plait::serve
