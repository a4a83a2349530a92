// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a step costs its host thread.
#if PLAIT_WITH_CUDA
#include "engine/attention_impl.h"
#include "plait/bench/cuda_groups.h"
#include "plait/error.h"

namespace plait::bench {
namespace {

constexpr int kCallsPerSample = 16;  // enqueued without a wait, as a serving loop does

/// A run whose output lies elsewhere at every call, as no graph is made for.
class MovingRun {
 public:
  MovingRun(CudaTimer& timer, CudaCase& problem)
      : attention_(problem.attention()),
        args_(problem.args()),
        memory_(timer.context(),
                args_.o.size() * static_cast<std::int64_t>(KnownBuffer::kElement) + kPlaces * kStep,
                "outputs") {}

  void operator()() {
    const auto offset = static_cast<cuda::CuDevicePtr>(place_++ % kPlaces * kStep);
    args_.o.data = reinterpret_cast<void*>(memory_.address() + offset);
    attention_.run(args_);
  }

 private:
  static constexpr std::int64_t kPlaces = 4096;  // more than runs are remembered
  static constexpr std::int64_t kStep = 256;     // bytes

  Attention& attention_;
  RunArgs args_;
  cuda::DeviceBuffer memory_;
  std::int64_t place_ = 0;
};

/// Lets a plan make the graph that runs are launched as.
void make_run_graph(CudaCase& problem) {
  for (int i = 0; i < 2; ++i) problem.run();
  problem.plan();
  if (problem.attention().impl().executor().num_run_graphs() == 0) {
    throw Error(ErrorCode::kInternal, "run graphs", "0 after a run that came back",
                "1: the driver may have refused it");
  }
}

template <class Call>
void host_row(const std::string& name, const std::string& family, double goal_us, CudaTimer& timer,
              int repetitions, Report& report, Call&& call) {
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
    host_row(std::string("host: run with a moving output ") + name, family, 5, timer,
             options.repetitions, report, MovingRun(timer, problem));
    make_run_graph(problem);
    host_row(std::string("host: run from a graph ") + name, family, 5, timer, options.repetitions,
             report, [&] { problem.run(); });
    host_row(std::string("host: plan and upload ") + name, family, 25, timer, options.repetitions,
             report, [&] { problem.plan(); });
  }
}

}  // namespace plait::bench
#endif  // PLAIT_WITH_CUDA
