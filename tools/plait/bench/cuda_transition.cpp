// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#if PLAIT_WITH_CUDA
#include <algorithm>

#include "plait/bench/cuda_case.h"
#include "plait/bench/cuda_groups.h"
#include "plait/configurations.h"

namespace plait::bench {
namespace {

constexpr int kLayers = 32;

/// A captured graph of kLayers runs.
class LayerGraph {
 public:
  LayerGraph(CudaTimer& timer, Attention& attention, const RunArgs& args) : timer_(timer) {
    const cuda::ContextScope scope(*timer.context());
    const cuda::Driver& driver = timer.context()->driver();
    cuda::CuGraph graph = nullptr;
    driver.check(driver.stream_begin_capture(timer.stream(), cuda::CuCaptureMode::kThreadLocal),
                 "cuStreamBeginCapture");
    for (int layer = 0; layer < kLayers; ++layer) attention.run(args);
    driver.check(driver.stream_end_capture(timer.stream(), &graph), "cuStreamEndCapture");
    driver.check(driver.graph_instantiate(&exec_, graph, 0), "cuGraphInstantiate");
    driver.graph_destroy(graph);
  }
  ~LayerGraph() {
    const cuda::ContextScope scope(*timer_.context());
    timer_.context()->driver().graph_exec_destroy(exec_);
  }
  LayerGraph(const LayerGraph&) = delete;
  LayerGraph& operator=(const LayerGraph&) = delete;

  void replay() const {
    const cuda::ContextScope scope(*timer_.context());
    const cuda::Driver& driver = timer_.context()->driver();
    driver.check(driver.graph_launch(exec_, timer_.stream()), "cuGraphLaunch");
  }

 private:
  CudaTimer& timer_;
  cuda::CuGraphExec exec_ = nullptr;
};

template <class Work>
void host_row(const std::string& name, CudaTimer& timer, int repetitions, Report& report,
              const Work& work) {
  if (!report.wants(name)) return;
  Row row;
  row.name = name;
  for (int round = -1; round < repetitions; ++round) {
    timer.synchronize();
    const double seconds = seconds_of(work);
    if (round >= 0) row.sample.seconds.push_back(seconds);
  }
  timer.synchronize();
  report.add(row);
}

template <class Work>
void device_row(const std::string& name, CudaTimer& timer, int repetitions, Report& report,
                const Work& work) {
  if (!report.wants(name)) return;
  Row row;
  row.name = name;
  for (int round = -1; round < repetitions; ++round) {
    const double seconds = timer.seconds_of(work);
    if (round >= 0) row.sample.seconds.push_back(seconds);
  }
  report.add(row);
}

}  // namespace

void bench_transition(CudaTimer& timer, const CudaBenchOptions& options, Report& report) {
  const AttentionSpec spec = bench_spec({.mask = MaskKind::kCausal});
  const auto opened = open_case(timer, "transition", spec, std::vector<CaseRequest>(64, {1, 2048}),
                                options.problem, report);
  if (opened == nullptr) return;
  CudaCase& problem = *opened;
  ConfigurationSet set(problem.engine(), {spec}, {});
  const std::int32_t small = set.add(problem.capacity());
  Capacity large_capacity = problem.capacity();
  large_capacity.max_kv_tokens *= 2;
  large_capacity.max_requests *= 2;
  large_capacity.max_query_rows *= 2;
  large_capacity.max_row_blocks *= 2;
  const std::int32_t large = set.add(large_capacity);
  const Stream stream{timer.stream()};
  for (const std::int32_t index : {small, large}) {
    set.at(index).plan(problem.batch(), stream);
    set.at(index).run(problem.args());
  }
  const std::string what = " 64x2048 32/8x128 page 16";
  host_row("transition: capture of 32 layers" + what, timer, options.repetitions, report,
           [&] { const LayerGraph graph(timer, set.at(small), problem.args()); });
  const LayerGraph small_graph(timer, set.at(small), problem.args());
  const LayerGraph large_graph(timer, set.at(large), problem.args());
  host_row("transition: plan and replay, same configuration" + what, timer, options.repetitions,
           report, [&] {
             set.at(small).plan(problem.batch(), stream);
             small_graph.replay();
           });
  // What a layer costs more in a graph, which launches every tile class, work or not.
  device_row("transition: 32 layers, eagerly, device time" + what, timer, options.repetitions,
             report, [&] {
               for (int layer = 0; layer < kLayers; ++layer) set.at(small).run(problem.args());
             });
  device_row("transition: 32 layers, replayed, device time" + what, timer, options.repetitions,
             report, [&] { small_graph.replay(); });
  bool use_large = false;
  host_row("transition: select, plan and replay, switching" + what, timer, options.repetitions,
           report, [&] {
             static_cast<void>(set.select(problem.batch()));
             use_large = !use_large;
             set.at(use_large ? large : small).plan(problem.batch(), stream);
             (use_large ? large_graph : small_graph).replay();
           });
  host_row("transition: growth by a half" + what, timer, std::min(options.repetitions, 5), report,
           [&] {
             Capacity grown = set.capacity(small);
             grown.max_kv_tokens += grown.max_kv_tokens / 2;
             set.grow(small, grown);
           });
}

}  // namespace plait::bench
#endif  // PLAIT_WITH_CUDA
