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

Planned plan_case(std::string_view name, const Policy& policy) {
  CorpusCase c = corpus_case(name);
  const PlanTarget target = reference_target(c.spec);
  const Batch first = c.batch.get();
  const Capacity capacity = fit_capacity(std::span(&c.spec, 1), std::span(&first, 1), policy);
  Planner planner(std::span(&c.spec, 1), capacity, policy, std::span(&target, 1));
  Planned p{std::move(c), target, std::move(planner), {}};
  p.batch = p.c.batch.get();
  p.planner.plan(std::span(&p.batch, 1));
  return p;
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

TEST(CorpusGolden, BytesAreTheSameEverywhere) {
  const std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> golden = {
#include "golden.inc"
  };
  for (std::string_view name : corpus_names()) {
    const Planned fast = plan_case(name, {});
    Policy invariant;
    invariant.kind = PolicyKind::kBatchInvariant;
    const Planned same = plan_case(name, invariant);
    const std::pair<std::uint64_t, std::uint64_t> got{hash_of(fast.planner.current()),
                                                      hash_of(same.planner.current())};
    const auto want = golden.find(std::string(name));
    char line[128];
    std::snprintf(line, sizeof(line), "{\"%s\", {0x%016llXULL, 0x%016llXULL}},",
                  std::string(name).c_str(), static_cast<unsigned long long>(got.first),
                  static_cast<unsigned long long>(got.second));
    if (want == golden.end() || want->second != got) ADD_FAILURE() << "golden: " << line;
  }
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
