// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#if PLAIT_WITH_CUDA
#include "plait/bench/cuda_groups.h"

#include <algorithm>
#include <utility>

#include "plait/bench/cuda_case.h"
#include "plait/configurations.h"

namespace plait::bench {
namespace {

constexpr int kLayers = 32;

AttentionSpec spec_of(int qo_heads, int kv_heads, int page_size, MaskKind mask) {
  AttentionSpec spec;
  spec.num_qo_heads = qo_heads;
  spec.num_kv_heads = kv_heads;
  spec.head_dim_qk = spec.head_dim_vo = 128;
  spec.mask = mask;
  if (page_size == 0) {
    spec.kv_kind = KvKind::kRagged;
    spec.page_size = 1;
  } else {
    spec.page_size = page_size;
  }
  return spec;
}

std::string heads_of(const AttentionSpec& spec) {
  return std::to_string(spec.num_qo_heads) + "/" + std::to_string(spec.num_kv_heads) + "x" +
         std::to_string(spec.head_dim_qk);
}

std::string pages_of(const AttentionSpec& spec) {
  return spec.kv_kind == KvKind::kRagged ? "ragged" : "page " + std::to_string(spec.page_size);
}

CudaCaseOptions case_options(const CudaBenchOptions& options) {
  return {options.device, options.family, options.shuffled_pages};
}

void decode_row(CudaTimer& timer, const std::string& shape, const AttentionSpec& spec,
                const std::vector<CaseRequest>& requests, const CudaBenchOptions& options,
                Report& report) {
  CudaCase problem(timer, spec, requests, case_options(options));
  Sample bound;
  Sample sample;
  for (int round = -2; round < options.repetitions; ++round) {
    const double read = timer.seconds_of([&] { problem.plain_read(); });
    const double run = timer.seconds_of([&] { problem.run(); });
    if (round < 0) continue;
    bound.seconds.push_back(read);
    sample.seconds.push_back(run);
  }
  Row row;
  row.name = "decode " + shape + " " + heads_of(spec) + " " + pages_of(spec) + " bf16 " +
             problem.attention().family();
  row.sample = sample;
  row.gigabytes_per_second = problem.kv_bytes() / sample.median() / 1e9;
  row.teraflops = problem.flops() / sample.median() / 1e12;
  row.bound_name = "plain read GB/s";
  row.bound = problem.kv_bytes() / bound.median() / 1e9;
  row.ratio = row.gigabytes_per_second / row.bound;
  report.add(row);
}

void bench_decode(CudaTimer& timer, const CudaBenchOptions& options, Report& report) {
  const std::pair<int, int> shapes[] = {{1, 512},   {16, 512},  {1, 8192},  {16, 2048},
                                        {64, 2048}, {64, 8192}, {256, 8192}};
  for (const auto& [qo_heads, kv_heads] : {std::pair{32, 8}, std::pair{64, 8}}) {
    const AttentionSpec spec = spec_of(qo_heads, kv_heads, 16, MaskKind::kCausal);
    for (const auto& [batch, kv] : shapes) {
      decode_row(timer, std::to_string(batch) + "x" + std::to_string(kv), spec,
                 std::vector<CaseRequest>(static_cast<std::size_t>(batch), {1, kv}), options,
                 report);
    }
    decode_row(timer, "64 skewed", spec, skewed_requests(64, 1), options, report);
  }
}

void bench_prefill(CudaTimer& timer, const CudaBenchOptions& options, Report& report) {
  const std::pair<int, int> shapes[] = {{16, 512}, {8, 1024}, {4, 2048},
                                        {2, 4096}, {1, 8192}, {1, 16384}};
  struct Variant {
    int kv_heads;
    int page_size;
  };
  for (const Variant variant : {Variant{32, 0}, Variant{8, 0}, Variant{8, 16}, Variant{8, 1}}) {
    for (const auto& [batch, length] : shapes) {
      for (const MaskKind mask : {MaskKind::kNone, MaskKind::kCausal}) {
        const AttentionSpec spec = spec_of(32, variant.kv_heads, variant.page_size, mask);
        CudaCase problem(
            timer, spec,
            std::vector<CaseRequest>(static_cast<std::size_t>(batch), {length, length}),
            case_options(options));
        Row row;
        for (int round = -2; round < options.repetitions; ++round) {
          const double seconds = timer.seconds_of([&] { problem.run(); });
          if (round >= 0) row.sample.seconds.push_back(seconds);
        }
        row.name = "prefill " + std::to_string(batch) + "x" + std::to_string(length) + " " +
                   heads_of(spec) + " " + pages_of(spec) +
                   (mask == MaskKind::kNone ? " full" : " causal") + " bf16 " +
                   problem.attention().family();
        row.teraflops = problem.flops() / row.sample.median() / 1e12;
        report.add(row);
      }
    }
  }
}

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

void bench_transition(CudaTimer& timer, const CudaBenchOptions& options, Report& report) {
  const AttentionSpec spec = spec_of(32, 8, 16, MaskKind::kCausal);
  CudaCase problem(timer, spec, std::vector<CaseRequest>(64, {1, 2048}), case_options(options));
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

}  // namespace

void bench_cuda(const std::vector<std::string>& groups, const CudaBenchOptions& options,
                Report& report) {
  CudaTimer timer(cuda::DeviceContext::get(options.device));
  const auto wanted = [&](const char* group) {
    return groups.empty() || std::find(groups.begin(), groups.end(), group) != groups.end();
  };
  if (wanted("decode")) bench_decode(timer, options, report);
  if (wanted("prefill")) bench_prefill(timer, options, report);
  if (wanted("transition")) bench_transition(timer, options, report);
}

}  // namespace plait::bench
#endif  // PLAIT_WITH_CUDA
