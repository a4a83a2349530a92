// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <nlohmann/json.hpp>

#include "serve/report.h"

namespace plait::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxSteps = 65536;

/// Six digits: what was measured is not better, and files stay small.
Json number(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == 0.0 || std::abs(value) >= 1e15) return value;
  const double scale = std::pow(10.0, 5.0 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

Json to_json(const Estimate& e) {
  Json out = {{"value", number(e.value)}};
  if (e.known) out["ci95"] = {number(e.low), number(e.high)};
  return out;
}

Json to_json(const Distribution& d) {
  Json out = {{"count", d.count}};
  if (d.count == 0) return out;
  out["total"] = number(d.total);
  out["min"] = number(d.minimum);
  out["max"] = number(d.maximum);
  out["mean"] = to_json(d.mean);
  out["p50"] = to_json(d.p50);
  out["p90"] = to_json(d.p90);
  out["p99"] = to_json(d.p99);
  return out;
}

Json to_json(const std::vector<Metric>& metrics) {
  Json out = Json::array();
  for (const Metric& m : metrics) {
    Json entry = {{"name", m.name}, {"unit", m.unit}};
    entry.update(to_json(m.distribution));
    out.push_back(std::move(entry));
  }
  return out;
}

Json to_json(const RequestClass& c) {
  return {{"class", c.name},
          {"requests", c.requests},
          {"input_tokens", c.input_tokens},
          {"output_tokens", c.output_tokens},
          {"metrics", to_json(c.metrics)}};
}

Json to_json(const PairedDifference& d) {
  return {{"pairs", d.count},
          {"difference", to_json(d.difference)},
          {"percent", to_json(d.percent)},
          {"median_percent", to_json(d.median_percent)},
          {"worse", d.worse},
          {"worst", number(d.worst)}};
}

Json to_json(const BreakEven& b, bool plan_only) {
  Json out = {{"sampled_steps", b.sampled_steps},
              {"layers", b.layers},
              {"saving_per_layer_us", to_json(b.saving_per_layer_us)},
              {"plan_us", to_json(b.plan_us)},
              {"break_even_layers", b.break_even_layers < 0 ? Json() : number(b.break_even_layers)},
              {"steps_not_paid", b.steps_not_paid}};
  if (!plan_only) out["measured_over_predicted"] = number(b.model_ratio);
  if (b.attention_share) out["attention_share"] = to_json(*b.attention_share);
  return out;
}

Json steps_to_json(const ReplayResult& result) {
  const std::size_t every = (result.steps.size() + kMaxSteps - 1) / kMaxSteps;
  Json columns = {{"every", every}};
  const auto add = [&](const char* name, auto&& value) {
    Json column = Json::array();
    for (std::size_t i = 0; i < result.steps.size(); i += every) {
      column.push_back(value(result.steps[i]));
    }
    columns[name] = std::move(column);
  };
  add("start_ms",
      [](const StepRecord& s) { return number(static_cast<double>(s.start_ns) / 1e6); });
  add("requests", [](const StepRecord& s) { return s.requests; });
  add("waiting", [](const StepRecord& s) { return s.waiting; });
  add("decode_rows", [](const StepRecord& s) { return s.decode_rows; });
  add("prefill_rows", [](const StepRecord& s) { return s.prefill_rows; });
  add("kv_tokens", [](const StepRecord& s) { return s.kv_tokens; });
  add("composed_requests", [](const StepRecord& s) { return s.composed; });
  add("levels", [](const StepRecord& s) { return s.levels; });
  add("pages_used", [](const StepRecord& s) { return s.pages_used; });
  add("plan_us", [](const StepRecord& s) { return number(s.plan_us); });
  add("compose_us", [](const StepRecord& s) { return number(s.compose_us); });
  add("copy_us", [](const StepRecord& s) { return number(s.upload_us); });
  add("metadata_bytes", [](const StepRecord& s) { return s.metadata_bytes; });
  add("workspace_bytes", [](const StepRecord& s) { return s.workspace_bytes; });
  add("planned_kv_bytes", [](const StepRecord& s) { return number(s.planned_kv_bytes); });
  add("predicted_us", [](const StepRecord& s) { return number(s.predicted_us); });
  add("predicted_imbalance", [](const StepRecord& s) { return number(s.predicted_imbalance); });
  add("attention_us", [](const StepRecord& s) { return number(s.attention_us); });
  add("merge_us", [](const StepRecord& s) { return number(s.merge_us); });
  add("rope_us", [](const StepRecord& s) { return number(s.rope_us); });
  add("append_us", [](const StepRecord& s) { return number(s.append_us); });
  add("measured_imbalance", [](const StepRecord& s) { return number(s.measured_imbalance); });
  add("saving_us",
      [](const StepRecord& s) { return s.saving_us < 0.0F ? Json() : number(s.saving_us); });
  return columns;
}

}  // namespace

std::string report_json(const ReplayResult& result, const Summary& summary,
                        const ReplayOptions& options) {
  Json run = Json::object();
  for (const auto& [key, value] : describe_run(result, options)) run[key] = value;
  Json totals = {{"steps", summary.steps},
                 {"requests", summary.requests},
                 {"finished", result.counts.finished},
                 {"input_tokens", summary.input_tokens},
                 {"output_tokens", summary.output_tokens},
                 {"computed_rows", summary.computed_rows},
                 {"virtual_seconds", number(summary.virtual_seconds)},
                 {"wall_seconds", number(result.wall_seconds)},
                 {"reused_fraction", number(summary.reused_fraction)},
                 {"composed_fraction", number(summary.composed_fraction)},
                 {"composed_steps", summary.composed_steps},
                 {"most_levels", summary.most_levels},
                 {"planned_over_requested", number(summary.planned_over_requested)},
                 {"evicted_blocks", result.evictions},
                 {"preemptions", result.counts.preemptions},
                 {"plan_seconds", number(summary.plan_seconds)},
                 {"workspace_high_water_bytes", summary.workspace_high_water},
                 {"metadata_high_water_bytes", summary.metadata_high_water},
                 {"pages_high_water", summary.pages_high_water}};
  if (!summary.plan_only) {
    totals["attention_seconds"] = number(summary.attention_seconds);
    totals["rows_per_second"] = number(summary.rows_per_second);
    totals["gflops"] = number(summary.gflops);
    totals["kv_gbytes_per_second"] = number(summary.kv_gbytes_per_second);
    totals["pool_bytes"] = result.pool_bytes;
    totals["output_checksum"] = result.checksum;
  }
  Json comparisons = Json::array();
  for (const Comparison& c : summary.comparisons) {
    Json entry = {{"feature", c.name}, {"change", c.change}, {"reference", c.reference}};
    if (c.attention_us) {
      entry["attention_us"] = to_json(*c.attention_us);
      entry["output_difference"] = number(c.output_difference);
    }
    entry["plan_us"] = to_json(c.plan_us);
    entry["predicted_us"] = to_json(c.predicted_us);
    entry["metadata_bytes"] = to_json(c.metadata_bytes);
    entry["planned_kv_bytes"] = to_json(c.planned_kv_bytes);
    comparisons.push_back(std::move(entry));
  }
  const Json out = {{"plait_replay", 1},
                    {"run", run},
                    {"plan_only", summary.plan_only},
                    {"totals", totals},
                    {"per_step", to_json(summary.step_metrics)},
                    {"short_requests", to_json(summary.short_requests)},
                    {"long_requests", to_json(summary.long_requests)},
                    {"break_even", to_json(summary.break_even, summary.plan_only)},
                    {"ablations", comparisons},
                    {"steps", steps_to_json(result)}};
  // Names from a file or the command line may hold any bytes.
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace plait::serve
