// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// plait bench: one CSV line per case, with the bound measured in the same process next to it.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "check/run_problem.h"
#include "core/file.h"
#include "cpu/kernel_table.h"
#include "plait/bench/attention_case.h"
#include "plait/bench/bounds.h"
#include "plait/bench/calibrate.h"
#if PLAIT_WITH_CUDA
#include "plait/bench/cuda_groups.h"
#endif
#include "plait/bench/plan_cases.h"
#include "plait/bench/report.h"
#include "plait/bench/stats.h"
#include "plait/engine_options.h"
#include "plait/error.h"
#include "plait/options.h"
#include "plait/paths.h"
#include "plait/verb.h"

namespace plait::tool {
namespace {

using bench::AttentionCase;
using bench::CaseOptions;
using bench::CaseRequest;
using bench::Report;
using bench::Row;
using bench::Sample;

constexpr std::array<std::string_view, 7> kGroups = {"plan",     "decode", "prefill",   "scaling",
                                                     "variants", "host",   "transition"};

struct Options {
  std::vector<std::string> groups;
  std::string csv;
  std::string filter;
  std::string pages = "shuffled";
  int threads = 0;
  int repetitions = 15;
  bool calibrate = false;
  std::string device = "cpu";
  std::string family = "auto";
  std::string clock = "wall";
};

AttentionSpec decode_spec(DType kv, KvLayout layout) {
  AttentionSpec spec;
  spec.num_qo_heads = 32;
  spec.num_kv_heads = 8;
  spec.head_dim_qk = spec.head_dim_vo = 128;
  spec.q_dtype = spec.o_dtype = kv == DType::kF32 ? DType::kF32 : DType::kBF16;
  spec.kv_dtype = kv;
  spec.layout = layout;
  spec.page_size = 16;
  return spec;
}

const char* layout_name(KvLayout layout) { return layout == KvLayout::kNhd ? "nhd" : "hnd"; }

/// A memory-bound case against a plain read of its pool.
void against_read(const std::string& name, AttentionCase& problem, const Options& options,
                  const bench::CacheFlush& flush, Report& report) {
  const auto pool = cpu::ThreadPool::shared(options.threads);
  Sample bound;
  Sample sample;
  bench::measure_in_turn(
      options.repetitions, flush,
      [&] { bench::plain_read(*pool, problem.keys(), problem.values()); }, [&] { problem.run(); },
      bound, sample);
  const double read_bytes =
      static_cast<double>(problem.keys().size()) + static_cast<double>(problem.values().size());
  Row row;
  row.name = name;
  row.threads = options.threads;
  row.sample = sample;
  row.gigabytes_per_second = problem.kv_bytes() / sample.median() / 1e9;
  row.teraflops = problem.flops() / sample.median() / 1e12;
  row.bound_name = "plain read GB/s";
  row.bound = read_bytes / bound.median() / 1e9;
  row.ratio = row.gigabytes_per_second / row.bound;
  report.add(row);
}

// Names of cases, which --filter asks for.

constexpr KvLayout kDecodeLayouts[] = {KvLayout::kNhd, KvLayout::kHnd};
constexpr DType kDecodeTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3};
std::string decode_name(DType kv, KvLayout layout, const Options& options) {
  return "decode 8x4096 32/8x128 page 16 " + std::string(to_string(kv)) + " " +
         layout_name(layout) + " " + options.pages;
}

constexpr DType kPrefillTypes[] = {DType::kF32, DType::kBF16};
constexpr const char* kPrefillCases[] = {" full", " causal", " causal/full time"};
std::string prefill_name(DType kv) { return "prefill 2048 8/8x128 " + std::string(to_string(kv)); }
bool wants_prefill(DType kv, const Report& report) {
  return std::any_of(std::begin(kPrefillCases), std::end(kPrefillCases),
                     [&](const char* which) { return report.wants(prefill_name(kv) + which); });
}

constexpr const char* kScalingName = "scaling skewed decode 16 requests bf16 nhd";

/// Whether a case is wanted that reads a pool, on some number of threads.
bool wants_pool(std::string_view group, const Options& options, const Report& report) {
  if (group == "scaling") return report.wants(kScalingName);
  if (group == "prefill") {
    return std::any_of(std::begin(kPrefillTypes), std::end(kPrefillTypes),
                       [&](DType kv) { return wants_prefill(kv, report); });
  }
  for (KvLayout layout : kDecodeLayouts) {
    for (DType kv : kDecodeTypes) {
      if (group == "decode" && report.wants(decode_name(kv, layout, options))) return true;
    }
  }
  return false;
}

void bench_decode(const Options& options, const bench::CacheFlush& flush, Report& report) {
  for (KvLayout layout : kDecodeLayouts) {
    for (DType kv : kDecodeTypes) {
      const std::string name = decode_name(kv, layout, options);
      if (!report.wants(name)) continue;
      CaseOptions c{options.threads, options.pages == "shuffled", {}};
      AttentionCase problem(decode_spec(kv, layout), std::vector<CaseRequest>(8, {1, 4096}), c);
      against_read(name, problem, options, flush, report);
    }
  }
}

void bench_prefill(const Options& options, const bench::CacheFlush& flush, Report& report) {
  const bench::Sgemm sgemm(options.threads);
  // OpenBLAS's threads go on spinning for some milliseconds after a product.
  const auto settle = [&flush] {
    flush();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  double full = 0.0;
  for (DType kv : kPrefillTypes) {
    const std::string name = prefill_name(kv);
    if (!wants_prefill(kv, report)) continue;
    for (MaskKind mask : {MaskKind::kNone, MaskKind::kCausal}) {
      AttentionSpec spec = decode_spec(kv, KvLayout::kNhd);
      spec.num_qo_heads = 8;
      spec.mask = mask;
      CaseOptions c{options.threads, options.pages == "shuffled", {}};
      AttentionCase problem(spec, {{2048, 2048}}, c);
      Sample bound;
      Sample sample;
      bench::measure_in_turn(
          options.repetitions, settle, sgemm, [&] { problem.run(); }, bound, sample);
      Row row;
      row.name = name + (mask == MaskKind::kNone ? " full" : " causal");
      row.threads = options.threads;
      row.sample = sample;
      row.gigabytes_per_second = problem.kv_bytes() / sample.median() / 1e9;
      row.teraflops = problem.flops() / sample.median() / 1e12;
      if (bench::Sgemm::available()) {
        row.bound_name = "OpenBLAS sgemm (" + bench::Sgemm::core() + ") TFLOP/s";
        row.bound = bench::Sgemm::kFlops / bound.median() / 1e12;
        row.ratio = row.teraflops / row.bound;
      }
      report.add(row);
      if (mask == MaskKind::kNone) {
        full = sample.median();
        continue;
      }
      Row part;
      part.name = name + " causal/full time";
      part.threads = options.threads;
      part.sample = sample;
      part.bound_name = "seconds of full";
      part.bound = full;
      part.ratio = sample.median() / full;
      report.add(part);
    }
  }
}

/// How far two threads speed up a skewed decode batch, against what they do for a plain read.
void bench_scaling(const Options& options, const bench::CacheFlush& flush, Report& report) {
  const std::string name = kScalingName;
  if (!report.wants(name)) return;
  const std::vector<CaseRequest> requests = bench::skewed_requests(16, 1);
  const AttentionSpec spec = decode_spec(DType::kBF16, KvLayout::kNhd);
  std::map<int, AttentionCase> problems;
  std::vector<int> counts{1};
  for (int n = 2; n < options.threads; n *= 2) counts.push_back(n);
  if (options.threads > 1) counts.push_back(options.threads);
  for (int n : counts) {
    problems.emplace(
        std::piecewise_construct, std::forward_as_tuple(n),
        std::forward_as_tuple(spec, requests, CaseOptions{n, options.pages == "shuffled", {}}));
  }
  std::map<int, Sample> reads;
  std::map<int, Sample> runs;
  for (int i = -1; i < options.repetitions; ++i) {
    for (int n : counts) {
      const auto pool = cpu::ThreadPool::shared(n);
      AttentionCase& problem = problems.at(n);
      flush();
      const double read =
          bench::seconds_of([&] { bench::plain_read(*pool, problem.keys(), problem.values()); });
      flush();
      const double run = bench::seconds_of([&] { problem.run(); });
      if (i < 0) continue;
      reads[n].seconds.push_back(read);
      runs[n].seconds.push_back(run);
    }
  }
  for (int n : counts) {
    Row row;
    row.name = name;
    row.threads = n;
    row.sample = runs[n];
    row.gigabytes_per_second = problems.at(n).kv_bytes() / runs[n].median() / 1e9;
    row.bound_name = "speed-up of the plain read";
    row.bound = reads[1].median() / reads[n].median();
    row.ratio = runs[1].median() / runs[n].median() / row.bound;
    report.add(row);
  }
}

/// The groups of a GPU; what only the CPU cases know is refused.
void run_on_gpu(const CLI::App& app, const Options& options, Report& report) {
  for (const char* option : {"--threads", "--calibrate", "--clock"}) {
    if (app.count(option) > 0) refuse_given(option, "--device cpu with it");
  }
  const auto has_pages = [](const std::string& group) { return group != "variants"; };
  if (app.count("--pages") > 0 && !options.groups.empty() &&
      std::none_of(options.groups.begin(), options.groups.end(), has_pages)) {
    refuse_given("--pages", "a group beside variants, whose keys are ragged");
  }
  const Device device = check::parse_device(options.device, "--device");
#if PLAIT_WITH_CUDA
  bench::CudaBenchOptions cuda;
  cuda.problem.device = device.index;
  cuda.problem.family = options.family;
  cuda.problem.shuffled_pages = options.pages == "shuffled";
  cuda.repetitions = options.repetitions;
  bench::bench_cuda(options.groups, cuda, report);
#else
  static_cast<void>(report);
  throw Error(ErrorCode::kBackend, "--device", check::device_name(device),
              "cpu: this build has no CUDA backend");
#endif
}

void run_on_cpu(const CLI::App& app, Options options, Report& report) {
  if (app.count("--family") > 0) refuse("--family", options.family, "--device cuda with it");
  for (const char* group : {"variants", "host", "transition"}) {
    if (std::find(options.groups.begin(), options.groups.end(), group) != options.groups.end()) {
      refuse("groups", group, "--device cuda with it");
    }
  }
  if (options.clock == "processor") {
    if (options.threads != 1) refuse("--clock", options.clock, "wall, unless --threads is 1");
    bench::clock_in_use = bench::Clock::kProcessor;
  }
  if (options.calibrate && app.count("--threads") > 0 && options.threads != 1) {
    refuse("--threads", std::to_string(options.threads),
           "1 or nothing beside --calibrate, which measures one core");
  }
  options.threads = cpu::thread_count(options.threads);
  if (options.calibrate) {
    bench::calibrate(options.repetitions, report);
    return;
  }
  const auto wanted = [&](std::string_view group) {
    return options.groups.empty() ||
           std::find(options.groups.begin(), options.groups.end(), group) != options.groups.end();
  };
  if (std::none_of(kGroups.begin(), kGroups.end(), [&](std::string_view group) {
        return wanted(group) && wants_pool(group, options, report);
      })) {
    for (const char* option : {"--pages", "--threads"}) {
      if (app.count(option) > 0)
        refuse_given(option, "a case beside plan, which has no use for it");
    }
  }
  const bench::CacheFlush flush;
  if (wanted("plan")) bench::bench_plan(options.repetitions, report);
  if (wanted("decode")) bench_decode(options, flush, report);
  if (wanted("prefill")) bench_prefill(options, flush, report);
  if (wanted("scaling")) bench_scaling(options, flush, report);
}

int run(const std::vector<std::string>& args) {
  Options options;
  CLI::App app{"Measures the engine and, in the same process, what bounds it", "plait bench"};
  auto* groups = app.add_option(
      "groups", options.groups,
      "decode, prefill; CPU: plan, scaling; GPU: variants, host, transition; none: all of the "
      "device");
  groups->type_name("GROUP");
  add_text(app, "--device", options.device, "DEVICE", "cpu, cuda or cuda:N")->capture_default_str();
  add_choice(app, "--family", options.family, {"auto", "mma", "hopper"},
             "GPU kernels: auto, mma or hopper")
      ->capture_default_str();
  add_text(app, "--csv", options.csv, "FILE", "write the lines to this file, too, at the end");
  auto* filter =
      add_text(app, "--filter", options.filter, "TEXT", "only cases whose name contains this text");
  auto* pages = add_choice(app, "--pages", options.pages, {"shuffled", "sequential"},
                           "order of pages in the pool: shuffled or sequential")
                    ->capture_default_str();
  add_integer(app, "--threads", options.threads, 0, kMostThreads,
              "0: PLAIT_NUM_THREADS or the cores");
  add_integer(app, "--repetitions", options.repetitions, 1, 100000,
              "per case; medians are reported")
      ->capture_default_str();
  add_switch(app, "--calibrate", options.calibrate,
             "measure the cost coefficients of this machine, on one thread, and print them")
      ->excludes(groups)
      ->excludes(filter)
      ->excludes(pages);
  add_choice(app, "--clock", options.clock, {"wall", "processor"},
             "wall, or processor: less disturbed by a busy machine; for --threads 1")
      ->capture_default_str();
  if (const auto code = parse_options(app, args)) return *code;
  for (const std::string& group : options.groups) {
    if (std::find(kGroups.begin(), kGroups.end(), group) == kGroups.end()) {
      refuse("groups", group, "plan, decode, prefill, scaling, variants, host or transition");
    }
  }
  Paths paths;
  paths.output("--csv", options.csv);
  Report report(options.filter);
  if (options.device == "cpu") {
    run_on_cpu(app, options, report);
  } else {
    run_on_gpu(app, options, report);
  }
  if (report.text().empty()) refuse("--filter", options.filter, "part of the name of a case");
  const std::string_view text = report.text();
  if (!options.csv.empty()) write_file_atomic(options.csv, {&text, 1}, "--csv");
  return 0;
}

const VerbRegistration kRegistration{"bench", "speed, next to what bounds it", run};

}  // namespace
}  // namespace plait::tool
