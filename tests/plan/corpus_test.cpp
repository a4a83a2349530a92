// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The named corpus: every plan verified, balanced, the same bytes from every compiler.
#include "plan/corpus.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <map>

#include "plan/fit_capacity.h"
#include "plan/reference_target.h"

namespace plait::test {
namespace {

struct Planned {
  CorpusCase c;
  PlanTarget target;
  Planner planner;
  Batch batch;
};

Planned plan_for(CorpusCase c, const PlanTarget& target, const Policy& policy) {
  const Batch first = c.batch.get();
  const Capacity capacity = fit_capacity(std::span(&c.spec, 1), std::span(&first, 1), policy);
  Planner planner(std::span(&c.spec, 1), capacity, policy, std::span(&target, 1));
  Planned p{std::move(c), target, std::move(planner), {}};
  p.batch = p.c.batch.get();
  p.planner.plan(std::span(&p.batch, 1));
  return p;
}

Planned plan_case(std::string_view name, const Policy& policy) {
  CorpusCase c = corpus_case(name);
  const PlanTarget target = reference_target(c.spec);
  return plan_for(std::move(c), target, policy);
}

class Corpus : public testing::TestWithParam<std::string> {};

TEST_P(Corpus, ThroughputPlanIsBalanced) {
  const Planned p = plan_case(GetParam(), {});
  const PlanSummary& s = p.planner.current().groups[0].totals;
  EXPECT_LE(static_cast<double>(s.largest_load), 1.05 * static_cast<double>(s.mean_load));
}

TEST_P(Corpus, SlowPlansAreVerified) {
  for (PolicyKind kind : {PolicyKind::kThroughput, PolicyKind::kBatchInvariant,
                          PolicyKind::kFixedChunk, PolicyKind::kUnsplit}) {
    // A fixed chunk of a long prompt makes very many partial states; others do as well.
    if (kind == PolicyKind::kFixedChunk && GetParam().find("1024") != std::string::npos) continue;
    Policy policy;
    policy.kind = kind;
    if (kind == PolicyKind::kFixedChunk) policy.kv_chunk = 4096;
    const Planned p = plan_case(GetParam(), policy);
    verify_plan(std::span(&p.c.spec, 1), std::span(&p.batch, 1), p.planner.current(),
                p.planner.bounds());
  }
}

/// Golden hashes of the blobs without the spec's fingerprint (that one is stable within a build
/// only). A change of the planner changes them: check that it was meant, then renew them with
/// `plait_plan_test --gtest_filter='*Golden*'`, which prints the new ones.
std::uint64_t hash_of(const Plan& plan) {
  std::vector<std::int32_t> words(plan.words.begin(), plan.words.end());
  auto* header = reinterpret_cast<device::PlanHeader*>(words.data());
  header->spec_fingerprint = 0;
  return XXH64(words.data(), words.size() * 4, 0);
}

/// Every policy, and two layer groups for few workers that share their lists.
std::vector<std::uint64_t> hashes_of(std::string_view name) {
  std::vector<std::uint64_t> hashes;
  for (PolicyKind kind : {PolicyKind::kThroughput, PolicyKind::kBatchInvariant,
                          PolicyKind::kFixedChunk, PolicyKind::kUnsplit}) {
    Policy policy;
    policy.kind = kind;
    if (kind == PolicyKind::kFixedChunk) policy.kv_chunk = 2048;
    hashes.push_back(hash_of(plan_case(name, policy).planner.current()));
  }
  CorpusCase c = corpus_case(name);
  std::vector<AttentionSpec> groups(2, c.spec);
  groups[1].window_left = 333;
  PlanTarget target = reference_target(c.spec);
  target.num_workers = 7;
  target.shared_workers = true;
  const std::vector<PlanTarget> targets(2, target);
  const Batch batch = c.batch.get();
  Planner planner(groups, fit_capacity(groups, std::span(&batch, 1), {}), {}, targets);
  hashes.push_back(hash_of(planner.plan(std::span(&batch, 1))));
  return hashes;
}

TEST(CorpusGolden, BytesAreTheSameEverywhere) {
  const std::map<std::string, std::vector<std::uint64_t>> golden = {
#include "golden.inc"
  };
  for (std::string_view name : corpus_names()) {
    const std::vector<std::uint64_t> got = hashes_of(name);
    const auto want = golden.find(std::string(name));
    if (want != golden.end() && want->second == got) continue;
    std::string line = "{\"" + std::string(name) + "\", {";
    for (const std::uint64_t hash : got) {
      char text[24];
      std::snprintf(text, sizeof(text), "0x%016llXULL,", static_cast<unsigned long long>(hash));
      line += text;
    }
    ADD_FAILURE() << "golden: " << line << "}},";
  }
}

/// A verified plan for workers that the KV heads of the corpus, 8, do not divide.
Planned plan_for_132(std::string_view name, bool pairs_heads) {
  CorpusCase c = corpus_case(name);
  PlanTarget target = reference_target(c.spec);
  target.num_workers = 132;
  target.classes[0].pairs_heads = pairs_heads;
  Planned p = plan_for(std::move(c), target, {});
  verify_plan(std::span(&p.c.spec, 1), std::span(&p.batch, 1), p.planner.current(),
              p.planner.bounds());
  return p;
}

/// 512 equal items on 132 workers are 4 for the longest and 3.88 at the mean.
TEST(CorpusBalance, EqualItemsThatDoNotDivideAreCut) {
  for (const bool pairs_heads : {false, true}) {
    const Planned p = plan_for_132("decode-64", pairs_heads);
    const ClassSummary& decode = p.planner.current().groups[0].classes[0];
    EXPECT_GT(decode.num_items, 512);
    EXPECT_LT(132.0 * static_cast<double>(decode.largest_load),
              1.02 * static_cast<double>(decode.total_load));
  }
}

/// Heads of the slices of the smallest tile class: the fewest and the most.
std::pair<int, int> heads_of_slices(const Planned& p) {
  const std::int32_t* words = p.planner.current().words.data();
  const auto& group =
      *reinterpret_cast<const device::GroupHeader*>(words + device::group_header_offset(0));
  const device::ClassHeader& c = group.classes[0];
  const auto* slices = reinterpret_cast<const device::Slice*>(words + c.slice_offset);
  std::pair<int, int> heads{INT32_MAX, 0};
  for (int i = 0; i < c.num_slices; ++i) {
    heads.first = std::min(heads.first, slices[i].count);
    heads.second = std::max(heads.second, slices[i].count);
  }
  return heads;
}

using Heads = std::pair<int, int>;

/// A kernel that computes two heads at once gets both from one slice, cut runs too.
TEST(CorpusPairs, WorkersHaveTwoHeadsOfARun) {
  EXPECT_EQ(heads_of_slices(plan_for_132("decode-64", false)), Heads(1, 1));
  EXPECT_EQ(heads_of_slices(plan_for_132("decode-64", true)), Heads(2, 2));
  EXPECT_EQ(heads_of_slices(plan_for_132("skewed", true)), Heads(2, 2));
}

/// 33 teams of four workers would have to cut one run into 33 parts for pairs.
TEST(CorpusPairs, AFewLongRunsAreNotCutForThem) {
  EXPECT_EQ(heads_of_slices(plan_for_132("decode-1", true)), Heads(1, 1));
}

/// Tiles of another class, whose kernel computes one head after the other.
TEST(CorpusPairs, AllClassesHaveToWantThem) {
  EXPECT_EQ(heads_of_slices(plan_for_132("mixed", true)).first, 1);
}

std::vector<std::string> names() {
  std::vector<std::string> list;
  for (std::string_view name : corpus_names()) list.emplace_back(name);
  return list;
}

INSTANTIATE_TEST_SUITE_P(All, Corpus, testing::ValuesIn(names()), [](const auto& entry) {
  std::string name = entry.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace plait::test
