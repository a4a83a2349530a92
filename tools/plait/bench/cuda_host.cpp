// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a step costs its host thread.
#if PLAIT_WITH_CUDA
#include "plait/bench/cuda_groups.h"

namespace plait::bench {
namespace {

constexpr int kCallsPerSample = 16;  // enqueued without a wait, as a serving loop does

template <class Call>
void host_row(const std::string& name, const std::string& family, double goal_us, CudaTimer& timer,
              int repetitions, Report& report, const Call& call) {
  if (!report.wants(name)) return;
  Row row;
  row.name = name;
  row.family = family;
  for (int round = -2; round < repetitions; ++round) {
    timer.synchronize();
    const double seconds = seconds_of([&] {
      for (int i = 0; i < kCallsPerSample; ++i) call();
    });
    if (round >= 0) row.sample.seconds.push_back(seconds / kCallsPerSample);
  }
  timer.synchronize();
  row.bound_name = "goal us";
  row.bound = goal_us;
  row.ratio = row.sample.median() * 1e6 / goal_us;
  report.add(row);
}

}  // namespace

void bench_host(CudaTimer& timer, const CudaBenchOptions& options, Report& report) {
  const AttentionSpec spec = bench_spec({.mask = MaskKind::kCausal});
  std::vector<CaseRequest> decode(256, {1, 512});
  std::vector<CaseRequest> mixed = decode;
  mixed.push_back({512, 512});
  for (const auto& [name, requests] :
       {std::pair{"256 decode x 512", decode},
        {"256 decode x 512 + prefill of 512", mixed},
        {"256 decode log-uniform 1..8192", log_uniform_requests(256, 8192, 1)},
        {"256 skewed decode", skewed_requests(256, 1)}}) {
    const auto opened =
        open_case(timer, std::string("host: ") + name, spec, requests, options.problem, report);
    if (opened == nullptr) continue;
    CudaCase& problem = *opened;
    const std::string family = problem.attention().family();
    host_row(std::string("host: run ") + name, family, 5, timer, options.repetitions, report,
             [&] { problem.run(); });
    host_row(std::string("host: plan and upload ") + name, family, 25, timer, options.repetitions,
             report, [&] { problem.plan(); });
  }
}

}  // namespace plait::bench
#endif  // PLAIT_WITH_CUDA
