// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/replay.h"

#include <algorithm>
#include <optional>

#include "plait/attention.h"
#include "plan/bounds.h"
#include "plan/reference_target.h"
#include "serve/batch_form.h"
#include "serve/compose.h"
#include "serve/scheduler.h"
#include "serve/step_runner.h"
#include "serve/stopwatch.h"
#include "serve/workload.h"

namespace plait::serve {
namespace {

/// Planning is compared with not planning in every step that runs attention; a replay that only
/// plans would plan everything twice, so there it is every sixteenth step.
constexpr std::int64_t kPlanOnlySampling = 16;

EngineOptions engine_options(const ReplayOptions& options) {
  EngineOptions engine;
  engine.device = options.device;
  engine.family = options.family;
  engine.num_threads = options.num_threads;
  engine.run_graphs = options.run_graphs;
  return engine;
}

ReplayOptions resolve(const Trace& trace, ReplayOptions options, const Geometry& geometry) {
  validate(options);
  const std::int64_t per_token = geometry.kv_bytes_per_token(options.kv_dtype);
  if (options.pool_tokens == 0) options.pool_tokens = default_pool_tokens(options, per_token);
  const std::int64_t page_size = options.scheduler.page_size;
  const std::int64_t pages = options.pool_tokens / std::max<std::int64_t>(page_size, 1);
  if (pages < 1 || pages > INT32_MAX) {
    throw Error(ErrorCode::kInvalidArgument, "pool-tokens", std::to_string(options.pool_tokens),
                "1 to 2^31 - 1 pages of " + std::to_string(page_size) + " tokens");
  }
  options.scheduler.pool_pages = static_cast<std::int32_t>(pages);
  if (trace.requests.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "trace", "no request", "at least one");
  }
  return options;
}

std::int64_t longest_request(const Trace& trace) {
  std::int64_t longest = 1;
  for (const TraceRequest& request : trace.requests) {
    longest = std::max(longest, std::int64_t{request.input_tokens} + request.output_tokens);
  }
  return longest;
}

ComposeCosts compose_costs(const Arm& baseline, const Geometry& geometry) {
  ComposeCosts costs;
  costs.target = baseline.targets()[0];  // groups differ in what they see, not in what it costs
  costs.target.num_workers = planning::worker_count(costs.target, baseline.spec.policy);
  costs.group_size = geometry.num_qo_heads / geometry.num_kv_heads;
  costs.num_kv_heads = geometry.num_kv_heads;
  costs.block_tokens = kTraceBlockTokens;
  return costs;
}

/// Nothing runs in a replay that only plans.
std::optional<Engine> make_engine(const ReplayOptions& options) {
  if (options.plan_only) return std::nullopt;
  return Engine(engine_options(options));
}

/// The baseline's plans without the planner's ideas: what the break-even terms compare with.
Planner make_shadow(const Arm& baseline, const ReplayOptions& options, std::int64_t longest) {
  Policy policy = baseline.spec.policy;
  policy.kind = PolicyKind::kUnsplit;
  policy.balance = false;
  return {baseline.groups, make_capacity(options, longest, false), policy, baseline.targets()};
}

class Replay {
 public:
  Replay(const Trace& trace, const ReplayOptions& options, const Geometry& geometry,
         const ReplayObserver& observer)
      : trace_(trace),
        options_(options),
        geometry_(geometry),
        observer_(observer),
        scheduler_(trace, options_.scheduler),
        engine_(make_engine(options)) {
    const std::int64_t longest = longest_request(trace);
    for (const ArmSpec& spec : make_arms(options_)) {
      result_.arms.push_back(spec);
      arms_.push_back(
          std::make_unique<Arm>(spec, engine_ ? &*engine_ : nullptr, geometry, options_, longest));
      contiguous_ = contiguous_ || spec.contiguous;
    }
    if (composes(options_)) composer_.emplace(compose_costs(*arms_[0], geometry));
    shadow_ = make_shadow(*arms_[0], options_, longest);
    if (!options_.plan_only) {
      memory_ = Memory::make(options_.device);
      runner_.emplace(trace, geometry_, options_, *engine_, *memory_, arms_,
                      options_.scheduler.pool_pages);
      result_.pool_bytes = runner_->pool_bytes();
    }
    times_.resize(arms_.size());
    result_.arm_steps.resize(arms_.size());
    result_.requests.resize(trace.requests.size());
    for (std::size_t i = 0; i < trace.requests.size(); ++i) {
      RequestRecord& record = result_.requests[i];
      record.input_tokens = trace.requests[i].input_tokens;
      record.output_tokens = trace.requests[i].output_tokens;
      record.arrival_ns = trace.requests[i].arrival_ns;
    }
  }

  ReplayResult run() {
    const Stopwatch watch;
    Step step;
    while (scheduler_.next(step)) {
      StepRecord record = describe(step);
      build_forms(step, record);
      plan(record);
      execute(record);
      scheduler_.commit(step);
      record.end_ns = step.end_ns;
      note_requests(step, record);
      result_.steps.push_back(record);
      if (observer_) {
        observer_({std::ssize(result_.steps), scheduler_.counts().finished,
                   scheduler_.num_requests(), static_cast<double>(step.end_ns) / 1e9});
      }
    }
    finish(watch.microseconds() / 1e6);
    return std::move(result_);
  }

 private:
  StepRecord describe(const Step& step) const {
    StepRecord record;
    record.start_ns = step.start_ns;
    record.newest_arrival_ns = step.newest_arrival_ns;
    record.requests = static_cast<std::int32_t>(step.entries.size());
    record.waiting = step.num_waiting;
    record.pages_used =
        static_cast<std::int32_t>(scheduler_.pool().num_pages() - scheduler_.pool().num_free());
    const double flops_per_pair = 4.0 * geometry_.num_qo_heads * geometry_.head_dim;
    const double bytes_per_token =
        2.0 * geometry_.num_kv_heads * geometry_.head_dim * size_of(options_.kv_dtype);
    for (const StepEntry& entry : step.entries) {
      (entry.is_decode ? record.decode_rows : record.prefill_rows) += entry.rows;
      const double kv_len = entry.context + entry.rows;
      record.kv_tokens += entry.context + entry.rows;
      for (const LayerGroup& group : geometry_.groups) {
        double pairs = entry.rows * (entry.context + 0.5 * (entry.rows + 1.0));
        double read = kv_len;
        if (group.window_left >= 0) {
          const double window = group.window_left + 1.0;
          pairs = std::min(pairs, entry.rows * window);
          read = std::min(read, entry.rows - 1.0 + window);
        }
        record.flops += group.layers * pairs * flops_per_pair;
        record.kv_bytes += group.layers * read * bytes_per_token;
      }
    }
    return record;
  }

  void build_forms(const Step& step, StepRecord& record) {
    entries_ = step.entries;
    if (composer_) {
      const Stopwatch watch;
      candidates_.clear();
      for (const StepEntry& entry : step.entries) {
        // Blocks that this very step completes are not shared yet: they lie within the rows.
        const auto blocks = scheduler_.shared_blocks(entry.request);
        candidates_.push_back({entry.rows, entry.context + entry.rows, blocks});
      }
      composer_->compose(candidates_);
      record.compose_us = static_cast<float>(watch.microseconds());
      record.levels = composer_->num_levels();
      const auto order = composer_->order();
      for (std::size_t i = 0; i < order.size(); ++i) {
        entries_[i] = step.entries[static_cast<std::size_t>(order[i])];
      }
    }
    const bool with_ids = !options_.plan_only;
    flat_.build_flat(scheduler_, entries_, with_ids);
    if (record.levels > 0) {
      composed_.build_composed(scheduler_, entries_, *composer_, with_ids);
      for (const PrefixGroup& group : composer_->groups()) {
        if (group.level == 0) record.composed += group.end - group.begin;
      }
    }
    if (contiguous_) ragged_.build_ragged(entries_);
    forms_.flat = &flat_;
    forms_.composed = record.levels == 0 ? nullptr : &composed_;
    forms_.ragged = contiguous_ ? &ragged_ : nullptr;
  }

  void plan(StepRecord& record) {
    const Batch* composed = forms_.composed != nullptr ? &composed_.batch() : nullptr;
    const auto step = static_cast<std::int64_t>(result_.steps.size());
    for (std::size_t turn = 0; turn < arms_.size(); ++turn) {
      const std::size_t a = (turn + static_cast<std::size_t>(step)) % arms_.size();
      Arm& arm = *arms_[a];
      const Batch& flat = arm.spec.contiguous ? ragged_.batch() : flat_.batch();
      const Stopwatch watch;
      arm.plan(flat, composed);
      const double plan_us = watch.microseconds() + (arm.spec.compose ? record.compose_us : 0.0F);
      ArmStep arm_step;
      arm_step.plan_us = static_cast<float>(plan_us);
      arm_step.predicted_us = static_cast<float>(arm.predicted_ns(geometry_) / 1e3);
      arm_step.metadata_bytes = static_cast<std::int32_t>(arm.metadata_bytes());
      arm_step.planned_kv_bytes = arm.planned_kv_bytes(geometry_);
      result_.arm_steps[a].push_back(arm_step);
    }
    const Arm& baseline = *arms_[0];
    const ArmStep& planned = result_.arm_steps[0].back();
    record.plan_us = planned.plan_us;
    record.upload_us = static_cast<float>(baseline.upload_us());
    record.predicted_us = planned.predicted_us;
    record.metadata_bytes = planned.metadata_bytes;
    record.planned_kv_bytes = planned.planned_kv_bytes;
    record.workspace_bytes = baseline.workspace_bytes();
    const double mean = baseline.mean_load_ns(geometry_);
    record.predicted_imbalance =
        mean > 0.0 ? static_cast<float>(baseline.predicted_ns(geometry_) / mean) : 1.0F;
    if (!options_.plan_only || step % kPlanOnlySampling == 0) {
      const Batch& flat = flat_.batch();
      const Plan& unplanned = shadow_->plan(std::span<const Batch>(&flat, 1));
      double unplanned_us = 0.0;
      for (std::size_t g = 0; g < unplanned.groups.size(); ++g) {
        unplanned_us += static_cast<double>(geometry_.groups[g].layers) *
                        static_cast<double>(unplanned.groups[g].totals.largest_load) /
                        (1e3 * kCostUnitsPerNs);
      }
      record.saving_us = std::max(0.0F, static_cast<float>(unplanned_us) - record.predicted_us);
    }
  }

  void execute(StepRecord& record) {
    if (!runner_) return;
    record.append_us = static_cast<float>(runner_->run(entries_, forms_, arms_, times_));
    for (std::size_t a = 0; a < arms_.size(); ++a) {
      ArmStep& arm_step = result_.arm_steps[a].back();
      arm_step.attention_us = static_cast<float>(times_[a].attention_us + times_[a].rope_us);
    }
    const ArmTimes& baseline = times_[0];
    record.attention_us = static_cast<float>(baseline.attention_us);
    record.rope_us = static_cast<float>(baseline.rope_us);
    record.merge_us = static_cast<float>(baseline.merge_us);
    if (baseline.busy_us > 0.0) {
      record.measured_imbalance = static_cast<float>(baseline.longest_us / baseline.busy_us);
    }
  }

  void note_requests(const Step& step, const StepRecord& record) {
    const auto index = static_cast<std::int32_t>(result_.steps.size());
    const double us = options_.plan_only ? record.plan_us : record.attention_us;
    for (const StepEntry& entry : step.entries) {
      RequestRecord& request = result_.requests[static_cast<std::size_t>(entry.request)];
      if (request.first_scheduled_ns < 0) request.first_scheduled_ns = step.start_ns;
      if (entry.is_decode) {
        ++request.decode_steps;
        request.decode_us += us;
      } else {
        request.prefill_us += us;
      }
      if (entry.first_token) request.first_token_step = index;
      if (entry.yields_token) request.last_token_step = index;
    }
  }

  void finish(double wall_seconds) {
    result_.trace_name = trace_.name;
    if (runner_) {
      result_.device = options_.device.kind == DeviceKind::kCpu ? "cpu" : "cuda";
      result_.family = arms_[0]->attention->family();
    } else {
      result_.device = kReferenceDevice;
      result_.family = kReferenceFamily;
    }
    result_.num_workers = arms_[0]->num_workers();
    result_.pool_tokens =
        std::int64_t{options_.scheduler.pool_pages} * options_.scheduler.page_size;
    result_.wall_seconds = wall_seconds;
    result_.counts = scheduler_.counts();
    result_.evictions = scheduler_.cache().num_evictions();
    result_.output_difference.assign(arms_.size(), 0.0);
    if (runner_) {
      result_.checksum = runner_->checksum();
      for (std::size_t a = 0; a < arms_.size(); ++a) {
        result_.output_difference[a] = runner_->output_difference(a);
      }
    }
  }

  const Trace& trace_;
  ReplayOptions options_;
  const Geometry& geometry_;
  const ReplayObserver& observer_;
  Scheduler scheduler_;
  std::optional<Composer> composer_;  // none: nobody could read a prefix together
  std::optional<Engine> engine_;
  std::vector<std::unique_ptr<Arm>> arms_;
  std::optional<Planner> shadow_;
  std::unique_ptr<Memory> memory_;  // outlives what the runner allocates from it
  std::optional<StepRunner> runner_;
  bool contiguous_ = false;
  std::vector<StepEntry> entries_;
  std::vector<Candidate> candidates_;
  BatchForm flat_, composed_, ragged_;
  StepForms forms_;
  std::vector<ArmTimes> times_;
  ReplayResult result_;
};

}  // namespace

Trace load_trace(const ReplayOptions& options) {
  validate(options);
  Trace trace;
  if (options.trace_path.empty()) {
    const std::int64_t count = options.limit > 0 ? options.limit : kDefaultWorkloadRequests;
    trace = generate_workload(options.workload, count, options.seed);
  } else {
    trace = read_trace_file(options.trace_path, options.trace_format, options.limit);
  }
  if (options.time_scale != 1.0) scale_time(trace, options.time_scale);
  if (options.rate > 0.0) set_rate(trace, options.rate, options.seed);
  return trace;
}

ReplayResult run_replay(const Trace& trace, const ReplayOptions& options,
                        const ReplayObserver& observer) {
  const Geometry geometry = parse_geometry(options.geometry);
  const ReplayOptions resolved = resolve(trace, options, geometry);
  return Replay(trace, resolved, geometry, observer).run();
}

}  // namespace plait::serve
