// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Time to plan each batch of the corpus: 264 workers, one thread, medians.
//   plait_plan_bench [case|all] [repeats] [throughput|batch_invariant]
#include "plan/plan_bench.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

namespace {

struct Limit {
  std::string_view name;
  double microseconds;
};
constexpr Limit kLimits[] = {{"decode-256", 15}, {"decode-1024", 60}, {"mixed", 30}};

int run(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "all";
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 1000;
  const std::string policy_only = argc > 3 ? argv[3] : "";
  std::printf("case,policy,plan_us,p10_us,p90_us,limit_us,items,partial_states,balance,bytes\n");
  for (std::string_view name : plait::corpus_names()) {
    if (only != "all" && only != name) continue;
    for (const plait::PolicyKind kind :
         {plait::PolicyKind::kThroughput, plait::PolicyKind::kBatchInvariant}) {
      const bool invariant = kind == plait::PolicyKind::kBatchInvariant;
      const std::string policy_name = invariant ? "batch_invariant" : "throughput";
      if (!policy_only.empty() && policy_only != policy_name) continue;
      plait::CorpusCase c = plait::corpus_case(name);
      plait::Policy policy;
      policy.kind = kind;
      const plait::PlanTiming t = plait::time_plan(c, policy, repeats);
      std::string limit = "-";
      for (const Limit& l : kLimits) {
        if (l.name == name && !invariant) limit = std::to_string(static_cast<int>(l.microseconds));
      }
      std::printf(
          "%s,%s,%.1f,%.1f,%.1f,%s,%lld,%lld,%.4f,%lld\n", c.name.c_str(), policy_name.c_str(),
          static_cast<double>(t.median) / 1e3, static_cast<double>(t.p10) / 1e3,
          static_cast<double>(t.p90) / 1e3, limit.c_str(),
          static_cast<long long>(t.summary.num_items),
          static_cast<long long>(t.summary.num_partial_states),
          static_cast<double>(t.summary.largest_load) / static_cast<double>(t.summary.mean_load),
          static_cast<long long>(t.summary.metadata_bytes));
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
