// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <optional>

#include "plait/error.h"
#include "plait/options.h"
#include "plait/verb.h"
#include "plan/reference_target.h"
#include "serve/atomic_file.h"
#include "serve/replay.h"
#include "serve/report.h"
#include "serve/summary.h"
#include "serve/workload.h"

namespace plait::tool {
namespace {

constexpr int kExitInterrupted = 130;  // 128 + SIGINT, what a shell reports

volatile sig_atomic_t interrupt_count = 0;

void on_interrupt(int) { interrupt_count = interrupt_count + 1; }

/// Ctrl-C asks the replay to stop between two layers; a second one ends the process at once.
void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

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

  void clear() {
    if (shown_ && terminal_) std::fprintf(stderr, "\r\033[K");
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
  std::string json;
  std::string html;
  bool no_compose = false;
  bool no_prefix_cache = false;
  bool quiet = false;
};

void add_options(CLI::App& app, serve::ReplayOptions& o, Words& w) {
  auto* trace = app.add_option("--trace", o.trace_path, "Mooncake JSONL or Azure LLM CSV")
                    ->option_text("FILE");
  app.add_option("--trace-format", w.trace_format, "auto, mooncake or azure")->needs(trace);
  app.add_option("--workload", o.workload, "without --trace: " + serve::known_workloads())
      ->excludes(trace)
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of workload, --rate and K/V values")->capture_default_str();
  app.add_option("--limit", o.limit, "requests to take (0: all; workloads: 64)");
  app.add_option("--time-scale", o.time_scale, "divide all arrival times by this");
  app.add_option("--rate", o.rate, "replace arrivals by a Poisson process, requests per second");
  app.add_option("--geometry", o.geometry,
                 "model, or layers=N,q=N,kv=N,dim=N[,window=N[,window-layers=N]][,cap=X]")
      ->capture_default_str();
  app.add_option("--kv-dtype", w.kv_dtype, "f32, f16, bf16, f8_e4m3 or f8_e5m2")
      ->capture_default_str();
  app.add_option("--rope", w.rope, "separate (keys cached rotated), fused or none")
      ->capture_default_str();
  app.add_flag("--plan-only", o.plan_only,
               "batching and planning without attention, for " + std::to_string(kReferenceWorkers) +
                   " workers that cost what those of an " + std::string(kReferenceDevice) + " do");
  app.add_option("--clock-us", w.clock, "duration of a step on the virtual clock")
      ->capture_default_str();
  app.add_option("--other-us", w.other, "model the rest of a step; adds TTFT and ITL");
  app.add_option("--ablate", w.ablate,
                 "all, or a list of planning, balancing, chunking, composition, indexed, tile, "
                 "write-through, rope");
  app.add_option("--token-budget", o.scheduler.token_budget, "query rows of a step")
      ->capture_default_str();
  app.add_option("--max-requests", o.scheduler.max_running, "running requests")
      ->capture_default_str();
  app.add_option("--page-size", o.scheduler.page_size, "tokens of a page")->capture_default_str();
  app.add_option("--pool-tokens", o.pool_tokens,
                 "tokens of the page pool (default 2^20, at most 4 GiB of K/V, 64 on a GPU)");
  app.add_flag("--no-compose", w.no_compose, "read shared prefixes once per request");
  app.add_flag("--no-prefix-cache", w.no_prefix_cache, "compute every prompt from its start");
  app.add_option("--long-tokens", o.long_tokens, "longer prompts are reported as long requests")
      ->capture_default_str();
  app.add_option("--device", w.device, "cpu or cuda")->capture_default_str();
  app.add_option("--family", o.family, "force a kernel family: auto, cpu, mma or hopper")
      ->capture_default_str();
  app.add_flag("--measure", o.measure_workers,
               "on a GPU: kernels that record when each worker starts and ends");
  app.add_option("--threads", o.num_threads, "CPU threads (0: PLAIT_NUM_THREADS, else the cores)");
  app.add_option("--workers", o.num_workers,
                 "workers of a plan (0: the backend's; the reference device's with --plan-only)");
  app.add_option("--json", w.json, "write everything as JSON")->option_text("FILE");
  app.add_option("--html", w.html, "write a report with plots")->option_text("FILE");
  app.add_flag("--checked", o.checked,
               "verify every plan and its operands; planning times contain that");
  app.add_flag("--quiet", w.quiet, "no progress on stderr");
}

[[noreturn]] void refuse(const char* field, const std::string& value, const char* expected) {
  throw Error(ErrorCode::kInvalidArgument, field, "\"" + value + "\"", expected);
}

void convert(const CLI::App& app, const Words& w, serve::ReplayOptions& o) {
  if (app.count("--trace") > 0 && o.trace_path.empty()) refuse("trace", "", "a file");
  if (w.trace_format == "mooncake") {
    o.trace_format = serve::TraceFormat::kMooncake;
  } else if (w.trace_format == "azure") {
    o.trace_format = serve::TraceFormat::kAzure;
  } else if (w.trace_format != "auto") {
    refuse("trace-format", w.trace_format, "auto, mooncake or azure");
  }
  o.kv_dtype = parse_dtype(w.kv_dtype, "kv-dtype");
  if (!is_float(o.kv_dtype)) refuse("kv-dtype", w.kv_dtype, "a floating type");
  if (w.rope == "fused") {
    o.rope = serve::RopeMode::kFused;
  } else if (w.rope == "none") {
    o.rope = serve::RopeMode::kNone;
  } else if (w.rope != "separate") {
    refuse("rope", w.rope, "separate, fused or none");
  }
  if (w.device == "cuda") {
    if (o.plan_only) refuse("device", w.device, "cpu beside --plan-only, which runs nowhere");
    o.device.kind = DeviceKind::kCuda;
  } else if (w.device != "cpu") {
    refuse("device", w.device, "cpu or cuda");
  }
  o.scheduler.step_time = serve::parse_affine_time(w.clock, "clock-us");
  if (app.count("--other-us") > 0) o.other_time = serve::parse_affine_time(w.other, "other-us");
  if (app.count("--ablate") > 0) o.ablate = serve::parse_features(w.ablate, o.plan_only);
  if (app.count("--rate") > 0 && !(o.rate > 0.0)) {
    refuse("rate", std::to_string(o.rate), "a positive number of requests per second");
  }
  if (app.count("--pool-tokens") > 0 && o.pool_tokens < 1) {
    refuse("pool-tokens", std::to_string(o.pool_tokens), "a positive number");
  }
  if (o.plan_only && app.count("--threads") > 0) {
    refuse("threads", std::to_string(o.num_threads), "nothing beside --plan-only");
  }
  if (o.plan_only && app.count("--rope") > 0) {
    refuse("rope", w.rope, "nothing beside --plan-only: rotation changes no plan");
  }
  o.compose = !w.no_compose;
  o.scheduler.prefix_cache = !w.no_prefix_cache;
}

int run_replay_verb(const std::vector<std::string>& args) {
  CLI::App app("Drives the engine with a serving trace and reports what attention costs.",
               "plait replay");
  serve::ReplayOptions options;
  Words words;
  add_options(app, options, words);
  if (const auto code = parse_options(app, args)) return *code;
  convert(app, words, options);
  std::optional<serve::AtomicFile> json;
  std::optional<serve::AtomicFile> html;
  if (app.count("--json") > 0) json.emplace(words.json, "json");
  if (app.count("--html") > 0) html.emplace(words.html, "html");
  if (json && html && words.json == words.html) {
    refuse("html", words.html, "another file than that of --json");
  }

  catch_interrupts();
  ProgressLine progress(words.quiet);
  const serve::ReplayHooks hooks{
      .progress = [&](const serve::ReplayProgress& p) { progress.show(p); },
      .interrupted = [] { return interrupt_count > 0; }};
  try {
    const serve::Trace trace = serve::load_trace(options);
    const serve::ReplayResult result = serve::run_replay(trace, options, hooks);
    progress.clear();
    const serve::Summary summary = serve::summarize(result, options);
    const std::string table = serve::report_table(result, summary, options);
    if (json) json->write(serve::report_json(result, summary, options));
    if (html) html->write(serve::report_html(result, summary, options));
    std::fputs(table.c_str(), stdout);
    if (std::fflush(stdout) != 0) refuse("stdout", "a write error", "a writable output");
    return 0;
  } catch (const Error& error) {
    progress.clear();
    if (error.code() != ErrorCode::kInterrupted) throw;
    std::fprintf(stderr, "plait replay: interrupted; no output was written\n");
    return kExitInterrupted;
  }
}

const VerbRegistration kRegistration{"replay", "a serving trace through the engine, measured",
                                     run_replay_verb};

}  // namespace
}  // namespace plait::tool
