// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "serve/report.h"
#include "serve/report_plots.h"
#include "serve/svg_plot.h"

namespace plait::serve {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --page: #f9f9f7; --card: #ffffff; --ink: #0b0b0b; --soft: #52514e;
  --faint: #8a8984; --grid: #e6e5e0; --series-1: #2a78d6; --series-2: #eb6834; --series-3: #1baf7a;
  --series-4: #4a3aa7; --worse: #c8372d; --better: #178a4c; --shade: #1baf7a18; }
@media (prefers-color-scheme: dark) { :root { --page: #0d0d0d; --card: #1a1a19; --ink: #ffffff;
  --soft: #c3c2b7; --faint: #8f8e86; --grid: #31312e; --series-1: #3987e5; --series-2: #d95926;
  --series-3: #199e70; --series-4: #9085e9; --worse: #e66767; --better: #3fbf7f;
  --shade: #199e7028; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 28px max(20px, calc((100vw - 1240px) / 2)) 60px; background: var(--page);
  color: var(--ink); font: 14px/1.45 system-ui, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 34px 0 10px; }
p { color: var(--soft); margin: 4px 0 12px; max-width: 90ch; }
.run { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 12px 0 20px; }
.run dt { color: var(--faint); } .run dd { margin: 0; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; }
.tile, .plot, .table { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; }
.tile { padding: 12px 14px; } .tile b { display: block; font-size: 22px; font-weight: 600; }
.tile span { color: var(--soft); font-size: 12.5px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)); gap: 12px; }
.plot { padding: 14px 16px 8px; } .alone { max-width: 660px; } .plot p { margin: 4px 0 6px; font-size: 12.5px; }
.table { overflow-x: auto; padding: 4px 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 14px; text-align: right; white-space: nowrap; }
th { color: var(--faint); font-weight: 500; border-bottom: 1px solid var(--grid); }
th:first-child, td:first-child { text-align: left; }
td small { color: var(--faint); display: block; }
.worse { color: var(--worse); } .better { color: var(--better); }
svg { display: block; width: 100%; height: auto; font: 11px system-ui, "Segoe UI", Roboto, sans-serif; }
svg .title { font-size: 13.5px; font-weight: 600; fill: var(--ink); }
svg .tick, svg .label, svg .legend, svg .note { fill: var(--soft); } svg .tick { fill: var(--faint); }
svg .grid { stroke: var(--grid); } svg .axis, svg .mark { stroke: var(--faint); }
svg .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } svg .area { fill-opacity: .55; }
svg .dot { fill-opacity: .45; } svg .reference { stroke: var(--soft); stroke-dasharray: 5 4; }
svg .shade { fill: var(--shade); } svg .whisker { stroke: var(--ink); stroke-width: 1.2; }
svg .s1 { stroke: var(--series-1); } svg .s2 { stroke: var(--series-2); }
svg .s3 { stroke: var(--series-3); } svg .s4 { stroke: var(--series-4); }
svg .f1 { fill: var(--series-1); } svg .f2 { fill: var(--series-2); }
svg .f3 { fill: var(--series-3); } svg .f4 { fill: var(--series-4); }
svg .fworse { fill: var(--worse); } svg .fbetter { fill: var(--better); }
footer { color: var(--faint); margin-top: 36px; font-size: 12.5px; }
/* On a narrow screen plots and tables keep their letters readable and scroll sideways. */
@media (max-width: 620px) { svg { min-width: 500px; } .plot { overflow-x: auto; }
  th, td { padding: 5px 10px; }
  th:first-child, td:first-child { position: sticky; left: 0; min-width: 108px; white-space: normal;
    background: var(--card); } }
)css";

std::string tile(const std::string& value, const std::string& label) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escape_html(value),
                     escape_html(label));
}

std::string with_interval(const Estimate& e, const std::string& unit) {
  std::string text = escape_html(human(e.value, unit));
  if (e.known) {
    text += fmt::format("<small>{} .. {}</small>", escape_html(human(e.low, unit)),
                        escape_html(human(e.high, unit)));
  }
  return text;
}

std::string metric_table(const std::vector<Metric>& metrics) {
  std::string out =
      "<div class=\"table\"><table><tr><th></th><th>mean</th><th>p50</th><th>p90</th><th>p99</th>"
      "<th>max</th></tr>\n";
  for (const Metric& m : metrics) {
    const Distribution& d = m.distribution;
    if (d.count == 0) continue;
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        escape_html(m.unit == "max/mean" ? m.name + " (max/mean)" : m.name),
        with_interval(d.mean, m.unit), with_interval(d.p50, m.unit), with_interval(d.p90, m.unit),
        with_interval(d.p99, m.unit), escape_html(human(d.maximum, m.unit)));
  }
  return out + "</table></div>\n";
}

std::string percent_cell(const PairedDifference& d) {
  // Coloured only where the interval excludes zero: noise is neither better nor worse.
  const bool worse = d.percent.known && d.percent.low > 0.0;
  const bool better = d.percent.known && d.percent.high < 0.0;
  std::string out = fmt::format("<td class=\"{}\">{:+.1f} %",
                                worse    ? "worse"
                                : better ? "better"
                                         : "",
                                d.percent.value);
  if (d.percent.known) {
    out += fmt::format("<small>{:+.1f} .. {:+.1f}</small>", d.percent.low, d.percent.high);
  }
  out += fmt::format("<small>median {:+.1f}</small>", d.median_percent.value);
  return out + "</td>";
}

std::string ablation_section(const Summary& summary) {
  if (summary.comparisons.empty()) return {};
  std::string out =
      "<h2>Ablations</h2>\n<p>The identical steps with exactly one feature changed. Differences "
      "are "
      "paired step by step; positive means that the change made it slower. Intervals are 95 %, "
      "from "
      "a bootstrap over blocks of consecutive steps.</p>\n<div class=\"plot alone\">" +
      plot_ablations(summary) + "</div>\n";
  out += "<div class=\"table\" style=\"margin-top:12px\"><table><tr><th>feature</th>";
  if (!summary.plan_only) out += "<th>attention</th>";
  out += "<th>plan</th><th>predicted</th><th>metadata</th><th>K/V reads</th><th>slower steps</th>";
  if (!summary.plan_only) out += "<th>outputs differ by</th>";
  out += "</tr>\n";
  for (const Comparison& c : summary.comparisons) {
    const PairedDifference& main = c.attention_us ? *c.attention_us : c.predicted_us;
    std::string change = escape_html(c.change);
    if (c.reference != "baseline") change += ", against the " + escape_html(c.reference);
    out += fmt::format("<tr><td>{}<small>{}</small></td>", escape_html(c.name), change);
    if (c.attention_us) out += percent_cell(*c.attention_us);
    out += percent_cell(c.plan_us) + percent_cell(c.predicted_us) + percent_cell(c.metadata_bytes) +
           percent_cell(c.planned_kv_bytes);
    out += fmt::format("<td>{} of {}</td>", main.worse, main.count);
    if (c.attention_us) out += fmt::format("<td>{:.2g}</td>", c.output_difference);
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string break_even_section(const ReplayResult& result, const Summary& summary) {
  const BreakEven& b = summary.break_even;
  std::string out = fmt::format(
      "<h2>When planning pays</h2>\n<p>Each dot is a step: what its plan cost, and what the plan "
      "saved over unsplit work dealt round robin, in {} layer(s). Savings are predicted by the "
      "cost "
      "model{}. Steps under the line did not repay their plan.</p>\n",
      b.layers,
      summary.plan_only
          ? std::string()
          : fmt::format("; attention measured {:.3g} times its prediction, and savings shrink with "
                        "that ratio where it is below 1",
                        b.model_ratio));
  out += "<div class=\"plots\"><div class=\"plot\">" + plot_break_even(result, summary) +
         "</div><div>\n<div class=\"tiles\">";
  out += tile(human(b.plan_us.mean.value, "us"), "plan cost of a step, mean");
  out += tile(human(b.saving_per_layer_us.mean.value, "us"), "saving per layer, mean");
  out += tile(b.break_even_layers < 0 ? "never" : fmt::format("{:.3g}", b.break_even_layers),
              "layers from which a plan pays");
  const double not_paid = b.sampled_steps > 0 ? 100.0 * static_cast<double>(b.steps_not_paid) /
                                                    static_cast<double>(b.sampled_steps)
                                              : 0.0;
  out += tile(fmt::format("{:.1f} %", not_paid),
              fmt::format("of {} sampled steps did not pay", b.sampled_steps));
  if (b.attention_share) {
    out += tile(fmt::format("{:.1f} %", 100.0 * b.attention_share->value),
                "attention share of a step (rest modelled)");
  }
  return out + "</div></div></div>\n";
}

}  // namespace

std::string report_html(const ReplayResult& result, const Summary& summary,
                        const ReplayOptions& options) {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>plait replay: {}</title>\n<style>{}</style></head><body>\n"
      "<h1>plait replay: {}</h1>\n<dl class=\"run\">\n",
      escape_html(result.trace_name), kStyle, escape_html(result.trace_name));
  for (const auto& [key, value] : describe_run(result, options)) {
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escape_html(key), escape_html(value));
  }
  out += "</dl>\n<div class=\"tiles\">\n";
  out += tile(fmt::format("{}", summary.steps),
              fmt::format("steps, {:.1f} s of virtual time", summary.virtual_seconds));
  if (!summary.plan_only) {
    out += tile(human(summary.attention_seconds * 1e6, "us"), "attention in all");
    out += tile(human(summary.rows_per_second), "query rows/s of attention time");
    out += tile(fmt::format("{:.1f}", summary.gflops), "GFLOP/s, masked pairs not counted");
    out += tile(fmt::format("{:.2f}", summary.kv_gbytes_per_second), "GB/s of K and V");
  }
  for (const Metric& m : summary.step_metrics) {
    if (m.name == "plan") {
      out += tile(human(m.distribution.p50.value, "us"), "plan of a step, p50");
      out += tile(human(m.distribution.p99.value, "us"), "plan of a step, p99");
    }
  }
  out += tile(fmt::format("{:.1f} %", 100.0 * summary.reused_fraction), "of prompt tokens reused");
  out += tile(
      fmt::format("{:.1f} %", 100.0 * summary.composed_fraction),
      fmt::format("of scheduled requests composed, up to {} levels deep", summary.most_levels));
  out += tile(fmt::format("{:.3g}", summary.planned_over_requested),
              "planned K/V reads over what requests hold");
  out += tile(human(static_cast<double>(summary.workspace_high_water), "bytes"),
              "workspace high water");
  out += "</div>\n<h2>The run</h2>\n<div class=\"plots\">\n";
  for (const std::string& plot : plots_of_run(result, summary, options)) {
    out += "<div class=\"plot\">" + plot + "</div>\n";
  }
  out += "</div>\n<h2>Per step</h2>\n" + metric_table(summary.step_metrics);
  for (const RequestClass* c : {&summary.short_requests, &summary.long_requests}) {
    if (c->requests == 0) continue;
    out += fmt::format("<h2>{} {}</h2>\n", c->requests, escape_html(c->name));
    out += metric_table(c->metrics);
  }
  out += break_even_section(result, summary) + ablation_section(summary);
  out += fmt::format(
      "<footer>{} requests finished, {} preemptions, {} cached blocks evicted; {:.1f} s of wall "
      "time. Batches form on the virtual clock, never on measured time. Small figures are 95 % "
      "intervals: of quantiles by order statistics, of means by a block bootstrap.</footer>\n"
      "</body></html>\n",
      result.counts.finished, result.counts.preemptions, result.evictions, result.wall_seconds);
  return out;
}

}  // namespace plait::serve
