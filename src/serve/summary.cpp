// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/summary.h"

#include <algorithm>

namespace plait::serve {
namespace {

std::vector<double> column(const std::vector<StepRecord>& steps, auto&& value) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const StepRecord& step : steps) values.push_back(static_cast<double>(value(step)));
  return values;
}

std::vector<double> column(const std::vector<ArmStep>& steps, auto&& value) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const ArmStep& step : steps) values.push_back(static_cast<double>(value(step)));
  return values;
}

void add_step_metrics(const ReplayResult& result, const ReplayOptions& options, Summary& summary) {
  const auto& steps = result.steps;
  const auto add = [&](const char* name, const char* unit, auto&& value) {
    summary.step_metrics.push_back({name, unit, describe(column(steps, value))});
  };
  if (!options.plan_only) {
    add("attention", "us", [](const StepRecord& s) { return s.attention_us; });
    if (measures_workers(options)) {
      add("of it merge", "us", [](const StepRecord& s) { return s.merge_us; });
    }
    if (options.rope == RopeMode::kSeparate) {
      add("rotation", "us", [](const StepRecord& s) { return s.rope_us; });
    }
    add("append K/V", "us", [](const StepRecord& s) { return s.append_us; });
  }
  add("plan", "us", [](const StepRecord& s) { return s.plan_us; });
  if (composes(options)) {
    add("of it composing", "us", [](const StepRecord& s) { return s.compose_us; });
  }
  if (!options.plan_only) {  // otherwise nobody takes the plan
    add("of it copy", "us", [](const StepRecord& s) { return s.upload_us; });
  }
  add("metadata", "bytes", [](const StepRecord& s) { return s.metadata_bytes; });
  add("predicted time", "us", [](const StepRecord& s) { return s.predicted_us; });
  add("predicted imbalance", "max/mean", [](const StepRecord& s) { return s.predicted_imbalance; });
  if (measures_workers(options) && result.num_workers > 1) {
    add("measured imbalance", "max/mean", [](const StepRecord& s) { return s.measured_imbalance; });
  }
  add("planned K/V reads", "bytes", [](const StepRecord& s) { return s.planned_kv_bytes; });
  add("requests", "", [](const StepRecord& s) { return s.requests; });
  add("query rows", "", [](const StepRecord& s) { return s.decode_rows + s.prefill_rows; });
  add("KV tokens", "", [](const StepRecord& s) { return s.kv_tokens; });
}

RequestClass describe_class(const ReplayResult& result, const ReplayOptions& options, bool is_long,
                            const std::vector<double>& step_ends_ms) {
  RequestClass out;
  out.name = (is_long ? "long requests (> " : "short requests (<= ") +
             std::to_string(options.long_tokens) + " prompt tokens)";
  std::vector<double> prefill, decode, waiting, ttft, itl;
  for (const RequestRecord& r : result.requests) {
    if ((r.input_tokens > options.long_tokens) != is_long) continue;
    ++out.requests;
    out.input_tokens += r.input_tokens;
    out.output_tokens += r.output_tokens;
    prefill.push_back(r.prefill_us);
    if (r.decode_steps > 0) decode.push_back(r.decode_us / r.decode_steps);
    waiting.push_back(static_cast<double>(r.first_scheduled_ns - r.arrival_ns) / 1e6);
    if (step_ends_ms.empty()) continue;
    const double first = step_ends_ms[static_cast<std::size_t>(r.first_token_step)];
    const double last = step_ends_ms[static_cast<std::size_t>(r.last_token_step)];
    ttft.push_back(first - static_cast<double>(r.arrival_ns) / 1e6);
    if (r.output_tokens > 1) itl.push_back((last - first) / (r.output_tokens - 1));
  }
  const std::string what = options.plan_only ? "planning" : "attention";
  out.metrics.push_back({what + " before the first token", "us", describe(prefill)});
  out.metrics.push_back({what + " per later token", "us", describe(decode)});
  out.metrics.push_back({"queueing (virtual clock)", "ms", describe(waiting)});
  if (!step_ends_ms.empty()) {
    out.metrics.push_back({"TTFT (modelled)", "ms", describe(ttft)});
    out.metrics.push_back({"ITL (modelled)", "ms", describe(itl)});
  }
  return out;
}

BreakEven break_even(const ReplayResult& result, const ReplayOptions& options,
                     const Summary& summary) {
  BreakEven out;
  for (const LayerGroup& group : parse_geometry(options.geometry).groups) {
    out.layers += group.layers;
  }
  double predicted_us = 0.0;
  for (const StepRecord& step : result.steps) predicted_us += step.predicted_us;
  if (!options.plan_only && predicted_us > 0.0) {
    out.model_ratio = summary.attention_seconds * 1e6 / predicted_us;
  }
  std::vector<double> savings;
  std::vector<double> plans;
  for (const StepRecord& step : result.steps) {
    if (step.saving_us < 0.0F) continue;
    const double saving = step.saving_us * out.saving_scale();
    savings.push_back(saving / out.layers);
    plans.push_back(step.plan_us);
    if (saving < step.plan_us) ++out.steps_not_paid;
  }
  out.sampled_steps = std::ssize(savings);
  out.saving_per_layer_us = describe(savings);
  out.plan_us = describe(plans);
  out.break_even_layers = out.saving_per_layer_us.total > 0.0
                              ? out.plan_us.total / out.saving_per_layer_us.total
                              : -1.0;
  if (options.other_time) {
    out.attention_share = mean_estimate(column(result.steps, [&](const StepRecord& s) {
      const double other = options.other_time->microseconds(s.decode_rows + s.prefill_rows);
      return s.attention_us / (s.attention_us + s.plan_us + other);
    }));
  }
  return out;
}

Comparison compare(const ReplayResult& result, const ReplayOptions& options, std::size_t arm) {
  const ArmSpec& spec = result.arms[arm];
  const auto& reference = result.arm_steps[static_cast<std::size_t>(spec.reference)];
  const auto& changed = result.arm_steps[arm];
  const auto paired = [&](auto&& value) {
    return compare_paired(column(reference, value), column(changed, value));
  };
  Comparison out;
  out.name = spec.name;
  out.change = spec.change;
  out.reference = result.arms[static_cast<std::size_t>(spec.reference)].name;
  if (out.reference == "composition") out.reference = "baseline without composition";
  if (!options.plan_only) {
    out.attention_us = paired([](const ArmStep& s) { return s.attention_us; });
  }
  out.plan_us = paired([](const ArmStep& s) { return s.plan_us; });
  out.predicted_us = paired([](const ArmStep& s) { return s.predicted_us; });
  out.metadata_bytes = paired([](const ArmStep& s) { return s.metadata_bytes; });
  out.planned_kv_bytes = paired([](const ArmStep& s) { return s.planned_kv_bytes; });
  out.output_difference = result.output_difference[arm];
  return out;
}

}  // namespace

std::vector<double> modelled_step_ends_ms(const ReplayResult& result, const AffineTime& other) {
  std::vector<double> ends;
  ends.reserve(result.steps.size());
  double now_us = 0.0;
  for (const StepRecord& step : result.steps) {
    now_us = std::max(now_us, static_cast<double>(step.newest_arrival_ns) / 1e3);
    now_us += other.microseconds(step.decode_rows + step.prefill_rows) + step.attention_us +
              step.rope_us + step.append_us + step.plan_us;
    ends.push_back(now_us / 1e3);
  }
  return ends;
}

Summary summarize(const ReplayResult& result, const ReplayOptions& options) {
  Summary summary;
  summary.plan_only = options.plan_only;
  summary.steps = std::ssize(result.steps);
  summary.requests = std::ssize(result.requests);
  for (const RequestRecord& r : result.requests) {
    summary.input_tokens += r.input_tokens;
    summary.output_tokens += r.output_tokens;
  }
  if (result.counts.prompt_tokens > 0) {
    summary.reused_fraction = static_cast<double>(result.counts.reused_tokens) /
                              static_cast<double>(result.counts.prompt_tokens);
  }
  double flops = 0.0;
  double bytes = 0.0;
  double planned = 0.0;
  std::int64_t composed = 0;
  std::int64_t scheduled = 0;
  for (const StepRecord& s : result.steps) {
    summary.computed_rows += s.decode_rows + s.prefill_rows;
    summary.plan_seconds += s.plan_us / 1e6;
    summary.attention_seconds += s.attention_us / 1e6;
    summary.workspace_high_water = std::max(summary.workspace_high_water, s.workspace_bytes);
    summary.metadata_high_water =
        std::max<std::int64_t>(summary.metadata_high_water, s.metadata_bytes);
    summary.pages_high_water = std::max(summary.pages_high_water, s.pages_used);
    flops += s.flops;
    bytes += s.kv_bytes;
    composed += s.composed;
    planned += s.planned_kv_bytes;
    summary.composed_steps += s.levels > 0 ? 1 : 0;
    summary.most_levels = std::max(summary.most_levels, s.levels);
    scheduled += s.requests;
  }
  if (!result.steps.empty()) {
    summary.virtual_seconds = static_cast<double>(result.steps.back().end_ns) / 1e9;
    summary.composed_fraction = static_cast<double>(composed) / static_cast<double>(scheduled);
  }
  if (bytes > 0.0) summary.planned_over_requested = planned / bytes;
  if (summary.attention_seconds > 0.0) {
    summary.rows_per_second =
        static_cast<double>(summary.computed_rows) / summary.attention_seconds;
    summary.gflops = flops / summary.attention_seconds / 1e9;
    summary.kv_gbytes_per_second = bytes / summary.attention_seconds / 1e9;
  }
  add_step_metrics(result, options, summary);
  std::vector<double> ends;
  if (options.other_time) ends = modelled_step_ends_ms(result, *options.other_time);
  summary.short_requests = describe_class(result, options, false, ends);
  summary.long_requests = describe_class(result, options, true, ends);
  summary.break_even = break_even(result, options, summary);
  for (std::size_t arm = 1; arm < result.arms.size(); ++arm) {
    summary.comparisons.push_back(compare(result, options, arm));
  }
  return summary;
}

}  // namespace plait::serve
