// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "plait/options.h"
#include "plait/paths.h"
#include "plait/verb.h"
#include "plan/reference_target.h"
#include "serve/replay.h"
#include "serve/report.h"
#include "serve/summary.h"
#include "serve/workload.h"

namespace plait::tool {
namespace {

/// A line on stderr after the first second and then now and again: rewritten in place on a
/// terminal, every five seconds elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(bool quiet) : quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1) {}

  void show(const serve::ReplayProgress& progress) {
    if (quiet_) return;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(terminal_ ? 200 : 5000);
    shown_ = true;
    std::fprintf(stderr,
                 "%sreplay: step %lld, %lld of %lld requests finished, virtual time %.1f s%s",
                 terminal_ ? "\r\033[K" : "", static_cast<long long>(progress.steps),
                 static_cast<long long>(progress.finished), static_cast<long long>(progress.total),
                 progress.virtual_seconds, terminal_ ? "" : "\n");
  }

  /// Also when the replay ends by an exception.
  ~ProgressLine() { clear(); }

  void clear() {
    if (shown_ && terminal_) std::fprintf(stderr, "\r\033[K");
    shown_ = false;
  }

 private:
  bool quiet_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(1);
};

/// The words of the command line before they are turned into ReplayOptions.
struct Words {
  std::string trace_format = "auto";
  std::string kv_dtype = "bf16";
  std::string rope = "separate";
  std::string device = "cpu";
  std::string clock = "5000+25*tokens";
  std::string other;
  std::string ablate;
  std::int32_t run_graphs = 0;
  std::string json;
  std::string html;
  bool no_compose = false;
  bool no_prefix_cache = false;
  bool quiet = false;
};

void add_options(CLI::App& app, serve::ReplayOptions& o, Words& w) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t kMostTokens = std::numeric_limits<std::int64_t>::max();
  auto* trace = add_text(app, "--trace", o.trace_path, "FILE", "Mooncake JSONL or Azure LLM CSV");
  add_choice(app, "--trace-format", w.trace_format, {"auto", "mooncake", "azure"},
             "auto, mooncake or azure")
      ->needs(trace);
  add_text(app, "--workload", o.workload, "TEXT", "without --trace: " + serve::known_workloads())
      ->excludes(trace)
      ->capture_default_str();
  add_integer<std::uint64_t>(app, "--seed", o.seed, 0, std::numeric_limits<std::uint64_t>::max(),
                             "of workload, --rate and K/V values")
      ->capture_default_str();
  add_integer<std::int64_t>(app, "--limit", o.limit, 0, serve::kMaxTraceRequests,
                            "requests to take (0: all; workloads: 64)");
  add_number(app, "--time-scale", o.time_scale, 0, 1e6, "divide all arrival times by this");
  add_number(app, "--rate", o.rate, 0, 1e6,
             "replace arrivals by a Poisson process, requests per second");
  add_text(app, "--geometry", o.geometry, "TEXT",
           std::string("model, or ") + serve::kExplicitGeometry)
      ->capture_default_str();
  add_choice(app, "--kv-dtype", w.kv_dtype, {"f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"},
             "f32, f16, bf16, f8_e4m3 or f8_e5m2")
      ->capture_default_str();
  add_choice(app, "--rope", w.rope, {"separate", "fused", "none"},
             "separate (keys cached rotated), fused or none")
      ->capture_default_str();
  add_switch(app, "--plan-only", o.plan_only,
             "batching and planning without attention, for " + std::to_string(kReferenceWorkers) +
                 " workers that cost what those of an " + std::string(kReferenceDevice) + " do");
  add_text(app, "--clock-us", w.clock, "A+B*tokens", "duration of a step on the virtual clock")
      ->capture_default_str();
  add_text(app, "--other-us", w.other, "A+B*tokens", "model the rest of a step; adds TTFT and ITL");
  add_text(app, "--ablate", w.ablate, "LIST",
           "all, or a list of planning, balancing, chunking, composition, indexed, tile, "
           "write-through, rope");
  add_integer(app, "--token-budget", o.scheduler.token_budget, 1, serve::kMaxStepRows,
              "query rows of a step")
      ->capture_default_str();
  add_integer(app, "--max-requests", o.scheduler.max_running, 1, serve::kMaxStepRows,
              "running requests")
      ->capture_default_str();
  add_integer(app, "--page-size", o.scheduler.page_size, 1, serve::kMaxPageSize, "tokens of a page")
      ->capture_default_str();
  add_integer<std::int64_t>(
      app, "--pool-tokens", o.pool_tokens, 1, kMostTokens,
      "tokens of the page pool (default 2^20, at most 4 GiB of K/V, 64 on a GPU)");
  add_switch(app, "--no-compose", w.no_compose, "read shared prefixes once per request");
  add_switch(app, "--no-prefix-cache", w.no_prefix_cache, "compute every prompt from its start");
  add_integer(app, "--long-tokens", o.long_tokens, 1, kMost,
              "longer prompts are reported as long requests")
      ->capture_default_str();
  add_choice(app, "--device", w.device, {"cpu", "cuda"}, "cpu or cuda")->capture_default_str();
  add_choice(app, "--family", o.family, {"auto", "cpu", "mma", "hopper"},
             "force a kernel family: auto, cpu, mma or hopper")
      ->capture_default_str();
  add_switch(app, "--measure", o.measure_workers,
             "on a GPU: kernels that record when each worker starts and ends");
  add_integer(app, "--threads", o.num_threads, 0, 1024,
              "CPU threads (0: PLAIT_NUM_THREADS, else the cores)");
  add_integer(app, "--run-graphs", w.run_graphs, 0, kMaxRunGraphs,
              "on a GPU: runs that are kept as graphs, 0: none (default 256)");
  add_integer(app, "--workers", o.num_workers, 0, 4096,
              "workers of a plan (0: the backend's; the reference device's with --plan-only)");
  add_text(app, "--json", w.json, "FILE", "write everything as JSON");
  add_text(app, "--html", w.html, "FILE", "write a report with plots");
  add_switch(app, "--checked", o.checked,
             "verify every plan and its operands; planning times contain that");
  add_switch(app, "--quiet", w.quiet, "no progress on stderr");
}

void convert(const CLI::App& app, const Words& w, serve::ReplayOptions& o) {
  if (w.trace_format == "mooncake") o.trace_format = serve::TraceFormat::kMooncake;
  if (w.trace_format == "azure") o.trace_format = serve::TraceFormat::kAzure;
  o.kv_dtype = parse_dtype(w.kv_dtype, "kv-dtype");
  if (w.rope == "fused") o.rope = serve::RopeMode::kFused;
  if (w.rope == "none") o.rope = serve::RopeMode::kNone;
  if (o.plan_only) {
    for (const char* option :
         {"--device", "--family", "--threads", "--measure", "--rope", "--run-graphs"}) {
      if (app.count(option) > 0)
        refuse_given(option, "--plan-only, which runs nothing, without it");
    }
  }
  if (w.device == "cuda") {
    if (app.count("--threads") > 0) refuse_given("--threads", "--device cpu with it");
    o.device.kind = DeviceKind::kCuda;
  }
  if (app.count("--run-graphs") > 0) {
    if (w.device == "cpu") refuse_given("--run-graphs", "--device cuda with it");
    o.run_graphs = w.run_graphs;
  }
  o.scheduler.step_time = serve::parse_affine_time(w.clock, "--clock-us");
  if (app.count("--other-us") > 0) o.other_time = serve::parse_affine_time(w.other, "--other-us");
  if (app.count("--rate") > 0 && !(o.rate > 0.0)) {
    refuse("--rate", "0", "a positive number of requests per second");
  }
  if (app.count("--rate") > 0 && app.count("--time-scale") > 0) {
    refuse_given("--time-scale", "--rate, which replaces all arrival times, without it");
  }
  if (o.plan_only && app.count("--trace") > 0 && app.count("--rate") == 0 &&
      app.count("--seed") > 0) {
    refuse("--seed", std::to_string(o.seed),
           "nothing beside --trace and --plan-only without --rate: nothing is random then");
  }
  if (w.no_compose && w.no_prefix_cache) {
    refuse_given("--no-compose", "--no-prefix-cache without it: there is no prefix to share");
  }
  o.compose = !w.no_compose;
  o.scheduler.prefix_cache = !w.no_prefix_cache;
  if (app.count("--ablate") > 0) o.ablate = serve::parse_features(w.ablate, o);
}

void write_report(const std::string& path, std::string_view text, std::string_view option) {
  write_file_atomic(path, {&text, 1}, option);
}

int run_replay_verb(const std::vector<std::string>& args) {
  CLI::App app("Drives the engine with a serving trace and reports what attention costs.",
               "plait replay");
  serve::ReplayOptions options;
  Words words;
  add_options(app, options, words);
  if (const auto code = parse_options(app, args)) return *code;
  convert(app, words, options);
  Paths paths;
  paths.input("--trace", options.trace_path);
  paths.output("--json", words.json);
  paths.output("--html", words.html);

  ProgressLine progress(words.quiet);
  const serve::Trace trace = serve::load_trace(options);
  const serve::ReplayResult result =
      serve::run_replay(trace, options, [&](const serve::ReplayProgress& p) { progress.show(p); });
  progress.clear();
  const serve::Summary summary = serve::summarize(result, options);
  const std::string table = serve::report_table(result, summary, options);
  if (!words.json.empty()) {
    write_report(words.json, serve::report_json(result, summary, options), "--json");
  }
  if (!words.html.empty()) {
    write_report(words.html, serve::report_html(result, summary, options), "--html");
  }
  std::fputs(table.c_str(), stdout);
  return 0;
}

const VerbRegistration kRegistration{"replay", "a serving trace through the engine, measured",
                                     run_replay_verb};

}  // namespace
}  // namespace plait::tool
