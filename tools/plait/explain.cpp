// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// plait explain: draws a plan, certifies it, and says where a step's time goes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "check/operands.h"
#include "check/run_problem.h"
#include "core/file.h"
#include "core/text.h"
#include "engine/attention_impl.h"
#include "plait/engine_options.h"
#include "plait/error.h"
#include "plait/explain_draw.h"
#include "plait/options.h"
#include "plait/paths.h"
#include "plait/problem_argument.h"
#include "plait/verb.h"
#include "plan/corpus.h"
#include "plan/fit_capacity.h"
#include "plan/reference_target.h"

namespace plait::tool {
namespace {

using Clock = std::chrono::steady_clock;

/// Time between empty launches on one H200: what the reference device is assumed to need.
constexpr double kReferenceLaunchNs = 3700;

struct Request {
  std::string problem, tensors, batch, policy, svg, html;
  EngineWords engine{.device = "reference"};
  int workers = 0, kv_chunk = 0;
  bool why = false, measured = false, list = false;
};

/// What is planned: from a problem file or from the corpus.
struct Subject {
  std::string title;
  std::string what;
  AttentionSpec spec;
  Policy policy;
  Batch batch;
  Capacity capacity;
  // Owners of what `batch` refers to.
  std::optional<oracle::Problem> problem;
  std::optional<check::Operands> operands;
  std::optional<CorpusCase> corpus;
};

double ns(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::nano>(end - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string time_text(double t) {
  char text[32];
  if (t >= 1e6) {
    std::snprintf(text, sizeof(text), "%.3f ms", t / 1e6);
  } else {
    std::snprintf(text, sizeof(text), "%.2f us", t / 1e3);
  }
  return text;
}

void apply_policy(const Request& request, Policy& policy) {
  if (request.policy == "throughput") policy.kind = PolicyKind::kThroughput;
  if (request.policy == "batch_invariant") policy.kind = PolicyKind::kBatchInvariant;
  if (request.policy == "fixed_chunk") policy.kind = PolicyKind::kFixedChunk;
  if (request.policy == "unsplit") policy.kind = PolicyKind::kUnsplit;
  if (!request.policy.empty()) policy.kv_chunk = 0;
  if (request.kv_chunk > 0) policy.kv_chunk = request.kv_chunk;
  if (request.workers > 0) policy.num_workers = request.workers;
}

std::unique_ptr<Subject> make_subject(const Request& request) {
  auto subject = std::make_unique<Subject>();
  if (!request.problem.empty()) {
    subject->problem = read_problem(request.problem, request.tensors);
    subject->operands.emplace(*subject->problem);
    subject->title = is_problem_text(request.problem)
                         ? "problem"
                         : printable(std::filesystem::path(request.problem).filename().string());
    subject->what = std::to_string(subject->problem->num_requests()) + " requests, " +
                    std::to_string(subject->problem->total_q()) + " query rows";
    subject->spec = subject->operands->spec();
    subject->batch = subject->operands->batch();
    subject->policy = subject->operands->policy();
  } else {
    subject->corpus = corpus_case(request.batch.empty() ? "mixed" : request.batch);
    subject->title = subject->corpus->name;
    subject->what = subject->corpus->what;
    subject->spec = subject->corpus->spec;
    subject->batch = subject->corpus->batch.get();
  }
  apply_policy(request, subject->policy);
  subject->capacity =
      fit_capacity(std::span(&subject->spec, 1), std::span(&subject->batch, 1), subject->policy);
  return subject;
}

/// Operands of a corpus batch: random numbers, as a GPU's clock depends on them, and every page of
/// its own, so that no cache serves what memory would. A pool that would be too large for that has
/// pages that the page tables share.
struct CorpusOperands {
  std::vector<Tensor> page_ids, positions;
  RunArgs args;

  CorpusOperands(const Subject& s, Device device, check::OperandMemory& memory) {
    const AttentionSpec& spec = s.spec;
    const std::int64_t total_q = s.batch.qo_indptr.back();
    const std::int64_t heads = spec.num_kv_heads;
    args.q = noise(memory, spec.q_dtype, {total_q, spec.num_qo_heads, spec.head_dim_qk});
    args.o = noise(memory, spec.o_dtype, {total_q, spec.num_qo_heads, spec.head_dim_vo});
    if (spec.kv_kind == KvKind::kRagged) {
      const std::int64_t tokens = s.batch.views[0].page_indptr.back();
      args.k = noise(memory, spec.kv_dtype, {tokens, heads, spec.head_dim_qk});
      args.v = noise(memory, spec.kv_dtype, {tokens, heads, spec.head_dim_vo});
      return;
    }
    std::int64_t listed = 0;
    for (const View& view : s.batch.views) listed += view.page_indptr.back();
    const std::int64_t page_bytes =
        size_of(spec.kv_dtype) * spec.page_size * heads * (spec.head_dim_qk + spec.head_dim_vo);
    const std::int64_t pool = std::clamp<std::int64_t>(listed, 1, pool_bytes(device) / page_bytes);
    args.k = noise(memory, spec.kv_dtype, {pool, spec.page_size, heads, spec.head_dim_qk});
    args.v = noise(memory, spec.kv_dtype, {pool, spec.page_size, heads, spec.head_dim_vo});
    std::vector<std::int64_t> order(static_cast<std::size_t>(pool));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
    bool any_positions = false;
    std::size_t page = 0;
    for (const View& view : s.batch.views) {
      std::vector<std::int64_t> ids(static_cast<std::size_t>(view.page_indptr.back()));
      for (std::int64_t& id : ids) id = order[page++ % order.size()];
      page_ids.push_back(memory.place_i32(ids));
      const std::vector<std::int64_t> at(view.positions.begin(), view.positions.end());
      positions.push_back(at.empty() ? Tensor{} : memory.place_i32(at));
      any_positions |= !at.empty();
    }
    args.page_ids = page_ids;
    if (any_positions) args.positions = positions;
  }

 private:
  static Tensor noise(check::OperandMemory& memory, DType dtype,
                      const std::vector<std::int64_t>& shape) {
    return memory.noise(dtype, shape);
  }
  static constexpr std::int64_t pool_bytes(Device device) {
    return std::int64_t{device.kind == DeviceKind::kCpu ? 1 : 24} << 30;
  }
};

struct Result {
  PlanSummary summary;
  std::string where;
  std::string launch_note;
};

void parts_from_prediction(Drawing& drawing, double plan_ns, double launch_ns) {
  const PlanPicture& p = drawing.picture;
  drawing.parts.floor_ns = p.mean_ns - p.state_ns;
  drawing.parts.merge_ns = p.state_ns;
  drawing.parts.imbalance_ns = p.longest_ns - p.mean_ns;
  drawing.parts.launch_ns = launch_ns;
  drawing.parts.planning_ns = plan_ns;
}

/// Splits a measured run; `run_ns` is the whole call, workers report their own begin and end.
void parts_from_measurement(Drawing& drawing, double plan_ns, double run_ns,
                            std::int32_t num_workers) {
  double longest = 0;
  double busy = 0;
  for (const WorkerTime& t : drawing.measured) {
    longest = std::max(longest, static_cast<double>(t.end_ns));
    busy += static_cast<double>(t.end_ns - t.begin_ns);
  }
  const PlanPicture& p = drawing.picture;
  const double mean = std::min(busy / std::max(num_workers, 1), longest);
  const double states = p.mean_ns > 0 ? mean * p.state_ns / p.mean_ns : 0;
  drawing.parts.floor_ns = mean - states;
  drawing.parts.merge_ns = states;
  drawing.parts.imbalance_ns = longest - mean;
  drawing.parts.launch_ns = std::max(run_ns - longest, 0.0);
  drawing.parts.planning_ns = plan_ns;
}

/// Plans on the reference device, which needs no hardware.
Result explain_reference(const Subject& s, Drawing& drawing) {
  const PlanTarget target = reference_target(s.spec);
  const std::span<const AttentionSpec> specs(&s.spec, 1);
  const std::span<const Batch> batches(&s.batch, 1);
  Planner planner(specs, s.capacity, s.policy, std::span(&target, 1));
  std::vector<double> times;
  for (int i = 0; i < 50; ++i) {
    const auto begin = Clock::now();
    planner.plan(batches);
    times.push_back(ns(begin, Clock::now()));
  }
  verify_plan(specs, batches, planner.current(), planner.bounds());
  drawing.picture = picture_of(planner.current(), 0, s.spec, target);
  parts_from_prediction(drawing, median(times), kReferenceLaunchNs);
  const PlanSummary& totals = planner.current().groups[0].totals;
  return {totals, "reference device (" + std::to_string(totals.num_workers) + " workers)",
          "launch is assumed: 3.7 us, an empty launch on one H200"};
}

Result explain_device(const Request& request, const check::RunOptions& where, Subject& s,
                      Drawing& drawing) {
  EngineOptions engine_options;
  engine_options.device = where.device;
  engine_options.family = where.family;
  engine_options.num_threads = where.num_threads;
  const Engine engine(engine_options);
  Attention::Options options;
  options.policy = s.policy;
  options.measure = request.measured;
  Attention attention(engine, {s.spec}, s.capacity, options);
  std::vector<double> times;
  for (int i = 0; i < 20; ++i) {
    const auto begin = Clock::now();
    attention.plan(s.batch);
    times.push_back(ns(begin, Clock::now()));
  }
  const detail::AttentionImpl& impl = attention.impl();
  const Plan& plan = impl.planner().current();
  verify_plan(std::span(&s.spec, 1), std::span(&s.batch, 1), plan, impl.planner().bounds());
  drawing.picture = picture_of(plan, 0, s.spec, impl.targets()[0]);
  Result result{attention.summary(0), attention.family() + " on " + request.engine.device,
                "launch is not known without --measured: 0"};
  if (!request.measured) {
    parts_from_prediction(drawing, median(times), 0);
    return result;
  }
  const std::unique_ptr<check::OperandMemory> memory =
      check::make_operand_memory(engine_options.device);
  std::optional<CorpusOperands> corpus;
  if (s.corpus.has_value()) corpus.emplace(s, engine_options.device, *memory);
  RunArgs args = corpus.has_value() ? corpus->args : s.operands->place(*memory);
  args.stream = memory->stream();
  double run_ns = 0;
  for (int i = 0; i < 3; ++i) {  // the last of three, caches and clocks being warm
    memory->synchronize();
    const auto begin = Clock::now();
    attention.run(args);
    memory->synchronize();
    run_ns = ns(begin, Clock::now());
  }
  for (const WorkerTime& t : impl.executor().worker_times(args.stream)) {
    for (const PictureClass& c : drawing.picture.classes) {
      if (c.index != t.class_index || t.worker >= c.num_workers) continue;
      drawing.measured.push_back(t);
      drawing.measured_row.push_back(c.first_worker + t.worker);
    }
  }
  if (drawing.measured.empty()) {
    throw Error(ErrorCode::kUnsupported, "--measured", attention.family(),
                "a family that records worker times");
  }
  parts_from_measurement(drawing, median(times), run_ns, result.summary.num_workers);
  result.launch_note = "measured: the last of three runs";
  return result;
}

void print_why(const StepParts& parts, const std::string& note) {
  int sum = 0;
  for (const StepPart& p : parts_of(parts)) {
    std::printf("  %-10s %12s %9s   %s\n", p.name, time_text(p.ns).c_str(), p.share().c_str(),
                p.meaning);
    sum += p.tenths;
  }
  std::printf("  %-10s %12s %5d.%d %%   (%s)\n", "step", time_text(parts.total_ns()).c_str(),
              sum / 10, sum % 10, note.c_str());
}

void write_drawing(const std::string& path, const std::string& text, const char* field) {
  const std::string_view piece = text;
  write_file_atomic(path, std::span(&piece, 1), field);
  std::printf("wrote %s\n", path.c_str());
}

int run(const std::vector<std::string>& args) {
  CLI::App app{"Draws a plan and says where a step's time goes", "plait explain"};
  Request r;
  auto* problem = add_text(app, "problem", r.problem, "PROBLEM",
                           "problem file (docs/formats.md), or its text: '{...}'");
  add_text(app, "--tensors", r.tensors, "FILE", "safetensors file with named tensors")
      ->needs(problem);
  add_text(app, "--batch", r.batch, "NAME", "a named batch instead of a problem (see --list)")
      ->excludes(problem);
  add_switch(app, "--list", r.list, "names of the batches");
  add_engine_options(app, r.engine, "reference (a 264-worker GPU, no hardware), cpu, cuda[:N]");
  add_integer(app, "--workers", r.workers, 1, 1 << 20, "number of workers");
  add_choice(app, "--policy", r.policy, {"throughput", "batch_invariant", "fixed_chunk", "unsplit"},
             "throughput, batch_invariant, fixed_chunk or unsplit");
  add_integer(app, "--kv-chunk", r.kv_chunk, 1, std::numeric_limits<int>::max(),
              "tokens per chunk of fixed_chunk");
  add_text(app, "--svg", r.svg, "FILE", "write the drawing");
  add_text(app, "--html", r.html, "FILE", "write the drawing as a page");
  add_switch(app, "--why", r.why, "split the step's time");
  add_switch(app, "--measured", r.measured, "run it, and draw what each worker took");
  if (const auto code = parse_options(app, args)) return *code;
  if (r.list) {
    refuse_beside(app, "--list", {});
    for (std::string_view name : corpus_names()) {
      std::printf("%-16s %s\n", std::string(name).c_str(), corpus_case(name).what.c_str());
    }
    return 0;
  }
  const bool reference = r.engine.device == "reference";
  if (reference) {
    for (const char* option : {"--measured", "--family", "--threads"}) {
      if (app.count(option) > 0) refuse_given(option, "--device cpu or cuda with it");
    }
  }
  if (r.measured && !r.why && r.svg.empty() && r.html.empty()) {
    refuse_given("--measured", "--why, --svg or --html beside it, which show what it measures");
  }
  const check::RunOptions where = reference ? check::RunOptions{} : run_options(app, r.engine);
  Paths paths;
  if (!is_problem_text(r.problem)) paths.input("problem", r.problem);
  paths.input("--tensors", r.tensors);
  paths.output("--svg", r.svg);
  paths.output("--html", r.html);
  const std::unique_ptr<Subject> s = make_subject(r);
  Drawing drawing;
  const Result result =
      reference ? explain_reference(*s, drawing) : explain_device(r, where, *s, drawing);
  const PlanSummary& p = result.summary;
  const AttentionSpec& spec = s->spec;
  const double balance =
      p.mean_load > 0 ? static_cast<double>(p.largest_load) / static_cast<double>(p.mean_load)
                      : 1.0;
  char line[256];
  std::snprintf(line, sizeof(line), "%d/%d heads, dim %d, page %d, %s", spec.num_qo_heads,
                spec.num_kv_heads, spec.head_dim_qk, spec.page_size, result.where.c_str());
  drawing.title = s->title + ": " + s->what;
  drawing.subtitle = line;
  std::printf("%s\n%s\n", drawing.title.c_str(), line);
  std::printf("  %lld items for %d workers, %lld partial states, %zu merged tiles\n",
              static_cast<long long>(p.num_items), p.num_workers,
              static_cast<long long>(p.num_partial_states), drawing.picture.merges.size());
  std::printf("  predicted: longest worker %s, mean %s, balance %.3f\n",
              time_text(drawing.picture.longest_ns).c_str(),
              time_text(drawing.picture.mean_ns).c_str(), balance);
  std::printf("  plan: %s, %lld bytes to upload, workspace %lld bytes\n",
              time_text(drawing.parts.planning_ns).c_str(),
              static_cast<long long>(p.metadata_bytes), static_cast<long long>(p.workspace_bytes));
  std::printf("  verified: every visible (query, key) pair once, every state merged once\n");
  std::snprintf(line, sizeof(line), " · %lld items, %lld partial states · balance %.3f",
                static_cast<long long>(p.num_items), static_cast<long long>(p.num_partial_states),
                balance);
  drawing.subtitle += line;
  if (r.why) print_why(drawing.parts, result.launch_note);
  if (!r.svg.empty()) write_drawing(r.svg, draw_svg(drawing), "--svg");
  if (!r.html.empty()) write_drawing(r.html, draw_html(drawing), "--html");
  return 0;
}

const VerbRegistration kRegistration{"explain", "draw a plan and say where a step's time goes",
                                     run};

}  // namespace
}  // namespace plait::tool
