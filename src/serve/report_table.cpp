// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "serve/report.h"

namespace plait::serve {
namespace {

std::string significant(double value) {
  const double size = std::abs(value);
  if (size == 0.0) return "0";
  if (size >= 999.5) return fmt::format("{:.0f}", value);
  if (size >= 99.95) return fmt::format("{:.0f}", value);
  if (size >= 9.995) return fmt::format("{:.1f}", value);
  if (size >= 0.1) return fmt::format("{:.2f}", value);
  return fmt::format("{:.2g}", value);
}

std::string signed_percent(double value) { return fmt::format("{:+.1f} %", value); }

void add_metrics(std::string& out, const std::string& title, const std::vector<Metric>& metrics) {
  out += fmt::format("\n{:<34}{:>12}{:>12}{:>12}{:>12}{:>12}   {}\n", title, "mean", "p50", "p90",
                     "p99", "max", "95 % interval of p50 / p99");
  for (const Metric& m : metrics) {
    const Distribution& d = m.distribution;
    if (d.count == 0) continue;
    const auto range = [&](const Estimate& e) {
      return e.known ? human(e.low, m.unit) + " .. " + human(e.high, m.unit) : std::string("-");
    };
    const std::string name = m.unit == "max/mean" ? m.name + " (max/mean)" : m.name;
    out += fmt::format("  {:<32}{:>12}{:>12}{:>12}{:>12}{:>12}   {} / {}\n", name,
                       human(d.mean.value, m.unit), human(d.p50.value, m.unit),
                       human(d.p90.value, m.unit), human(d.p99.value, m.unit),
                       human(d.maximum, m.unit), range(d.p50), range(d.p99));
  }
}

std::string percent_range(const PairedDifference& d) {
  std::string text = signed_percent(d.percent.value);
  if (d.percent.known) {
    text += fmt::format(" ({:+.1f} .. {:+.1f})", d.percent.low, d.percent.high);
  }
  return text;
}

void add_comparisons(std::string& out, const Summary& summary) {
  if (summary.comparisons.empty()) return;
  out += fmt::format(
      "\nAblations: one feature changed, same steps; positive means slower than the reference\n"
      "  {:<15}{:<28}{:<10}{:<28}{:<10}{:<12}{:<12}{:>12}\n",
      "feature", summary.plan_only ? "predicted makespan" : "attention time", "median", "plan time",
      "median", "metadata", "K/V reads", "slower steps");
  for (const Comparison& c : summary.comparisons) {
    const PairedDifference& main = c.attention_us ? *c.attention_us : c.predicted_us;
    out += fmt::format("  {:<15}{:<28}{:<10}{:<28}{:<10}{:<12}{:<12}{} of {}\n", c.name,
                       percent_range(main), signed_percent(main.median_percent.value),
                       percent_range(c.plan_us), signed_percent(c.plan_us.median_percent.value),
                       signed_percent(c.metadata_bytes.percent.value),
                       signed_percent(c.planned_kv_bytes.percent.value), main.worse, main.count);
    out += fmt::format("    {}", c.change);
    if (c.reference != "baseline") out += ", against the " + c.reference;
    if (!summary.plan_only) {
      out += fmt::format("; outputs differ by at most {:.2g}", c.output_difference);
    }
    out += '\n';
  }
}

void add_break_even(std::string& out, const Summary& summary) {
  const BreakEven& b = summary.break_even;
  out += fmt::format("\nBreak-even of planning ({} steps sampled, {} {})\n", b.sampled_steps,
                     b.layers, b.layers == 1 ? "layer" : "layers");
  out += fmt::format("  plan cost                       {} a step\n", human(b.plan_us.mean, "us"));
  out += fmt::format(
      "  saving per layer                {} (predicted{})\n",
      human(b.saving_per_layer_us.mean, "us"),
      summary.plan_only
          ? std::string()
          : fmt::format("; attention measured {:.3g} times its prediction", b.model_ratio));
  if (b.break_even_layers >= 0.0) {
    out += fmt::format("  pays from                       {:.3g} layers of these\n",
                       b.break_even_layers);
  } else {
    out += "  pays from                       never: no step gained from it\n";
  }
  out += fmt::format(
      "  steps where it did not pay      {} of {} ({:.1f} %)\n", b.steps_not_paid, b.sampled_steps,
      b.sampled_steps > 0
          ? 100.0 * static_cast<double>(b.steps_not_paid) / static_cast<double>(b.sampled_steps)
          : 0.0);
  if (b.attention_share) {
    out += fmt::format("  attention share of a step       {:.1f} % (rest modelled by --other-us)\n",
                       100.0 * b.attention_share->value);
  }
}

/// ", up to 2 levels deep", or nothing where nothing was composed.
std::string levels_text(const Summary& summary) {
  if (summary.most_levels == 0) return {};
  return fmt::format(", up to {} {} deep", summary.most_levels,
                     summary.most_levels == 1 ? "level" : "levels");
}

}  // namespace

std::string human(double value) {
  const double size = std::abs(value);
  if (size >= 999.5e9) return significant(value / 1e12) + "T";
  if (size >= 999.5e6) return significant(value / 1e9) + "G";
  if (size >= 999.5e3) return significant(value / 1e6) + "M";
  if (size >= 9999.5) return significant(value / 1e3) + "k";
  return significant(value);
}

std::string human(double value, const std::string& unit) {
  const double size = std::abs(value);
  if (unit == "us") {
    if (size >= 999.5e3) return significant(value / 1e6) + " s";
    if (size >= 999.5) return significant(value / 1e3) + " ms";
    return significant(value) + " us";
  }
  if (unit == "ms") {
    return size >= 999.5 ? significant(value / 1e3) + " s" : significant(value) + " ms";
  }
  if (unit == "bytes") {
    if (size >= 1023.5 * 1048576.0) return significant(value / 1073741824.0) + " GiB";
    if (size >= 1023.5 * 1024.0) return significant(value / 1048576.0) + " MiB";
    if (size >= 1023.5) return significant(value / 1024.0) + " KiB";
    return significant(value) + " B";
  }
  if (unit == "max/mean") return fmt::format("{:.3f}", value);
  return human(value);
}

std::string human(const Estimate& estimate, const std::string& unit) {
  std::string text = human(estimate.value, unit);
  if (estimate.known) {
    text += " (" + human(estimate.low, unit) + " .. " + human(estimate.high, unit) + ")";
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> describe_run(const ReplayResult& result,
                                                              const ReplayOptions& options) {
  const SchedulerOptions& s = options.scheduler;
  std::vector<std::pair<std::string, std::string>> lines;
  std::string trace = (options.trace_path.empty() ? "workload " : "") + result.trace_name +
                      fmt::format(", {} requests", result.requests.size());
  if (options.trace_path.empty()) trace += fmt::format(", seed {}", options.seed);
  if (options.rate > 0.0) trace += fmt::format(", {} requests/s", options.rate);
  if (options.time_scale != 1.0) trace += fmt::format(", time scale {}", options.time_scale);
  lines.emplace_back("trace", trace);
  const Geometry g = parse_geometry(options.geometry);
  std::string shape = fmt::format("{} ({} {}, {}/{} heads, dim {}", g.name, g.num_layers(),
                                  g.num_layers() == 1 ? "layer" : "layers", g.num_qo_heads,
                                  g.num_kv_heads, g.head_dim);
  for (const LayerGroup& group : g.groups) {
    if (group.window_left >= 0) {
      shape += fmt::format(", {} with window {}", group.layers, group.window_left + 1);
    }
  }
  if (g.logits_soft_cap > 0.0) shape += fmt::format(", soft cap {}", g.logits_soft_cap);
  lines.emplace_back("geometry", shape + "), K/V " + std::string(to_string(options.kv_dtype)));
  lines.emplace_back(
      "batching",
      fmt::format("up to {} requests and {} rows a step, pool of {} tokens in pages of {}",
                  s.max_running, s.token_budget, human(static_cast<double>(result.pool_tokens)),
                  s.page_size));
  lines.emplace_back("virtual clock", to_string(s.step_time) + " a step");
  lines.emplace_back("engine",
                     options.plan_only
                         ? fmt::format("plans only, for {} workers at the cost of {}, family {}",
                                       result.num_workers, result.device, result.family)
                         : fmt::format("{}, family {}, {} workers", result.device, result.family,
                                       result.num_workers));
  if (options.other_time) {
    lines.emplace_back("rest of a step", "modelled as " + to_string(*options.other_time));
  }
  return lines;
}

std::string report_table(const ReplayResult& result, const Summary& summary,
                         const ReplayOptions& options) {
  std::string out;
  for (const auto& [key, value] : describe_run(result, options)) {
    out += fmt::format("{:<15} {}\n", key, value);
  }
  out += fmt::format(
      "\n{} steps over {:.1f} s of virtual time; {} prompt and {} generated tokens\n"
      "  prefix cache                    {:.1f} % of prompt tokens reused, {} blocks evicted, {} "
      "preemptions\n"
      "  composition                     {:.1f} % of scheduled requests read shared prefixes "
      "together, in {} of {} steps{}\n"
      "  planned K/V reads               {:.3g} times what the requests hold, each once\n"
      "  workspace / metadata / pages    high water {} / {} / {}\n",
      summary.steps, summary.virtual_seconds, human(static_cast<double>(summary.input_tokens)),
      human(static_cast<double>(summary.output_tokens)), 100.0 * summary.reused_fraction,
      result.evictions, result.counts.preemptions, 100.0 * summary.composed_fraction,
      summary.composed_steps, summary.steps, levels_text(summary), summary.planned_over_requested,
      human(static_cast<double>(summary.workspace_high_water), "bytes"),
      human(static_cast<double>(summary.metadata_high_water), "bytes"), summary.pages_high_water);
  if (!summary.plan_only) {
    out += fmt::format(
        "  attention                       {:.2f} s: {} rows/s, {:.1f} GFLOP/s, {:.2f} GB/s of "
        "K/V\n",
        summary.attention_seconds, human(summary.rows_per_second), summary.gflops,
        summary.kv_gbytes_per_second);
  }
  out += fmt::format("  planning                        {:.3f} s in all\n", summary.plan_seconds);
  add_metrics(out, "Per step", summary.step_metrics);
  for (const RequestClass* c : {&summary.short_requests, &summary.long_requests}) {
    if (c->requests == 0) continue;
    add_metrics(out, fmt::format("{} {}", c->requests, c->name), c->metrics);
  }
  add_break_even(out, summary);
  add_comparisons(out, summary);
  return out;
}

}  // namespace plait::serve
