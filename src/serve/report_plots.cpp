// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/report_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "serve/report.h"
#include "serve/svg_plot.h"

namespace plait::serve {
namespace {

constexpr std::size_t kBins = 200;
constexpr std::size_t kDots = 1500;

std::vector<double> xs(const std::vector<Point>& points) {
  std::vector<double> values;
  values.reserve(points.size());
  for (const Point& p : points) values.push_back(p.x);
  return values;
}
std::vector<double> ys(const std::vector<Point>& points) {
  std::vector<double> values;
  values.reserve(points.size());
  for (const Point& p : points) values.push_back(p.y);
  return values;
}

Axis fitted(std::string label, std::string unit, bool logarithmic,
            std::initializer_list<std::vector<double>> series) {
  Axis axis{std::move(label), std::move(unit), logarithmic, 0.0, 1.0};
  std::vector<double> all;
  for (const auto& values : series) all.insert(all.end(), values.begin(), values.end());
  axis.fit(all);
  return axis;
}

Axis fraction_axis(std::string label) {
  Axis axis{std::move(label), "fraction", false, 0.0, 1.0};
  return axis;
}

/// Time-weighted means of a quantity of the steps over bins of virtual time; idle time counts 0.
std::vector<Point> over_time(const ReplayResult& result, auto&& value) {
  const auto span_ns = static_cast<double>(result.steps.back().end_ns);
  const std::size_t bins = std::min(kBins, result.steps.size());
  const double width = span_ns / static_cast<double>(bins);
  std::vector<double> sums(bins, 0.0);
  for (const StepRecord& s : result.steps) {
    const auto begin = static_cast<double>(s.start_ns);
    const auto end = static_cast<double>(s.end_ns);
    const auto first = std::min(static_cast<std::size_t>(begin / width), bins - 1);
    const auto last = std::min(static_cast<std::size_t>(end / width), bins - 1);
    for (std::size_t b = first; b <= last; ++b) {
      const double low = std::max(begin, width * static_cast<double>(b));
      const double high = std::min(end, width * static_cast<double>(b + 1));
      if (high > low) sums[b] += (high - low) * static_cast<double>(value(s));
    }
  }
  std::vector<Point> points;
  for (std::size_t b = 0; b < bins; ++b) {
    points.push_back({(static_cast<double>(b) + 0.5) * width / 1e9, sums[b] / width});
  }
  return points;
}

std::string plot_rows(const ReplayResult& result) {
  const auto decode = over_time(result, [](const StepRecord& s) { return s.decode_rows; });
  const auto prefill = over_time(result, [](const StepRecord& s) { return s.prefill_rows; });
  // Logarithmic: a prefill chunk is a thousand decode rows, and both matter.
  Axis y = fitted("rows, mean over time", "", true, {ys(decode), ys(prefill)});
  y.low = 1.0;
  y.high = std::max(y.high, 10.0);
  Plot plot("Query rows of a step", fitted("virtual time, s", "", false, {xs(decode)}), y);
  plot.line(prefill, 2, "prefill");
  plot.line(decode, 1, "decode");
  return plot.svg();
}

std::string plot_requests(const ReplayResult& result) {
  const auto running = over_time(result, [](const StepRecord& s) { return s.requests; });
  const auto waiting = over_time(result, [](const StepRecord& s) { return s.waiting; });
  Plot plot("Requests", fitted("virtual time, s", "", false, {xs(running)}),
            fitted("requests, mean over time", "", false, {ys(running), ys(waiting)}));
  plot.line(running, 1, "in the step");
  plot.line(waiting, 2, "waiting");
  return plot.svg();
}

std::string plot_pool(const ReplayResult& result, const ReplayOptions& options) {
  const double page = options.scheduler.page_size;
  const auto used = over_time(result, [&](const StepRecord& s) { return s.pages_used * page; });
  const auto read = over_time(result, [](const StepRecord& s) { return s.kv_tokens; });
  const auto capacity = static_cast<double>(result.pool_tokens);
  double peak = 0.0;
  for (const Point& p : used) peak = std::max(peak, p.y);
  for (const Point& p : read) peak = std::max(peak, p.y);
  const bool near_full = peak > 0.4 * capacity;
  Plot plot("Tokens in the pool", fitted("virtual time, s", "", false, {xs(used)}),
            fitted("tokens", "", false, {{near_full ? capacity * 1.05 : peak}}));
  plot.area(used, {}, 3, "held, idle prefix blocks too");
  plot.line(read, 1, "KV tokens read by a step");
  if (near_full) {
    plot.reference({0.0, capacity}, {used.back().x, capacity}, "pool capacity");
  }
  return plot.svg();
}

std::string plot_times(const ReplayResult& result, const ReplayOptions& options) {
  const auto times = [&](auto&& value) {
    std::vector<double> values;
    for (const StepRecord& s : result.steps) values.push_back(static_cast<double>(value(s)));
    return cumulative(values);
  };
  const auto plan = times([](const StepRecord& s) { return s.plan_us; });
  if (options.plan_only) {
    Plot plot("Planning time of a step", fitted("time", "us", true, {xs(plan)}),
              fraction_axis("share of steps at most this"));
    plot.line(plan, 2, "plan");
    return plot.svg();
  }
  const auto attention = times([](const StepRecord& s) { return s.attention_us; });
  const auto append = times([](const StepRecord& s) { return s.append_us; });
  Plot plot("Time of a step, by part",
            fitted("time", "us", true, {xs(plan), xs(attention), xs(append)}),
            fraction_axis("share of steps at most this"));
  plot.line(attention, 1, "attention");
  plot.line(plan, 2, "plan");
  plot.line(append, 3, "append K/V");
  return plot.svg();
}

std::string plot_imbalance(const ReplayResult& result) {
  std::vector<double> predicted;
  std::vector<double> measured;
  for (const StepRecord& s : result.steps) {
    predicted.push_back(s.predicted_imbalance);
    if (s.measured_imbalance > 0.0F) measured.push_back(s.measured_imbalance);
  }
  const auto a = cumulative(predicted);
  const auto b = cumulative(measured);
  Axis x = fitted("largest over mean load of the workers", "", true, {xs(a), xs(b)});
  x.low = 1.0;
  double largest = 1.01;
  for (const Point& p : a) largest = std::max(largest, p.x);
  for (const Point& p : b) largest = std::max(largest, p.x);
  if (largest < 3.0) {  // close to 1, where a logarithm would have no ticks
    const double step = largest < 1.1 ? 0.02 : largest < 1.3 ? 0.05 : largest < 1.6 ? 0.1 : 0.5;
    x.logarithmic = false;
    x.high = 1.0 + step * std::ceil((largest - 1.0) / step - 1e-9);
  }
  Plot plot("Imbalance of a step", x, fraction_axis("share of steps at most this"));
  plot.line(a, 1, "predicted");
  if (!b.empty()) plot.line(b, 2, "measured");
  return plot.svg();
}

/// Every k-th step, split by whether it prefilled.
template <typename F>
void sample_dots(const ReplayResult& result, F&& point, std::vector<Point>& decode,
                 std::vector<Point>& mixed) {
  const std::size_t every = result.steps.size() / kDots + 1;
  for (std::size_t i = 0; i < result.steps.size(); i += every) {
    const StepRecord& s = result.steps[i];
    (s.prefill_rows > 0 ? mixed : decode).push_back(point(s));
  }
}

std::string plot_work(const ReplayResult& result, const ReplayOptions& options) {
  std::vector<Point> decode;
  std::vector<Point> mixed;
  if (options.plan_only) {
    sample_dots(
        result,
        [](const StepRecord& s) {
          return Point{static_cast<double>(s.requests), s.plan_us};
        },
        decode, mixed);
    Plot plot("Planning time against requests",
              fitted("requests of the step", "", true, {xs(decode), xs(mixed)}),
              fitted("plan", "us", true, {ys(decode), ys(mixed)}));
    plot.dots(decode, 1, "decode only");
    plot.dots(mixed, 2, "with prefill");
    return plot.svg();
  }
  sample_dots(
      result,
      [](const StepRecord& s) {
        return Point{s.predicted_us, s.attention_us};
      },
      decode, mixed);
  Axis x = fitted("predicted by the cost model", "us", true, {xs(decode), xs(mixed)});
  Axis y = fitted("measured attention", "us", true, {ys(decode), ys(mixed)});
  Plot plot("Measured against predicted time", x, y);
  plot.dots(decode, 1, "decode only");
  plot.dots(mixed, 2, "with prefill");
  const double low = std::max(x.low, y.low);
  const double high = std::min(x.high, y.high);
  if (high > low) plot.reference({low, low}, {high, high}, "equal");
  return plot.svg();
}

}  // namespace

std::vector<std::string> plots_of_run(const ReplayResult& result, const Summary&,
                                      const ReplayOptions& options) {
  if (result.steps.empty()) return {};
  return {plot_rows(result),           plot_requests(result),      plot_pool(result, options),
          plot_times(result, options), plot_work(result, options), plot_imbalance(result)};
}

std::string plot_break_even(const ReplayResult& result, const Summary& summary) {
  std::vector<Point> paid;
  std::vector<Point> lost;
  std::vector<const StepRecord*> sampled;
  for (const StepRecord& s : result.steps) {
    if (s.saving_us >= 0.0F) sampled.push_back(&s);
  }
  // A step without any saving is drawn at the lower end instead of being left out.
  constexpr double kFloorUs = 0.1;
  const std::size_t every = sampled.size() / kDots + 1;
  for (std::size_t i = 0; i < sampled.size(); i += every) {
    const double saving = sampled[i]->saving_us * summary.break_even.saving_scale();
    (saving < sampled[i]->plan_us ? lost : paid)
        .push_back({sampled[i]->plan_us, std::max(saving, kFloorUs)});
  }
  Axis x = fitted("plan cost", "us", true, {xs(paid), xs(lost)});
  Axis y = fitted("saving in all layers (0 drawn at 0.1 us)", "us", true, {ys(paid), ys(lost)});
  Plot plot("Saving against cost of planning", x, y);
  plot.dots(paid, 1, "paid");
  plot.dots(lost, 2, "did not pay");
  const double low = std::max(x.low, y.low);
  const double high = std::min(x.high, y.high);
  if (high > low) plot.reference({low, low}, {high, high}, "break-even");
  return plot.svg();
}

std::string plot_ablations(const Summary& summary) {
  double low = -1.0;
  double high = 1.0;
  for (const Comparison& c : summary.comparisons) {
    const Estimate& e = (c.attention_us ? *c.attention_us : c.predicted_us).percent;
    low = std::min({low, e.low, e.value});
    high = std::max({high, e.high, e.value});
  }
  const double margin = 0.12 * (high - low);
  low -= margin;
  high += margin;
  constexpr double kRow = 28.0;
  constexpr double kLabel = 110.0;
  constexpr double kTop = 30.0;
  const double width = Plot::kWidth - kLabel - 10.0;
  const double height = kTop + kRow * static_cast<double>(summary.comparisons.size()) + 14.0;
  const auto at = [&](double value) { return kLabel + width * (value - low) / (high - low); };
  std::string out = fmt::format(
      "<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"Ablations\">\n"
      "<text class=\"title\" x=\"0\" y=\"15\">Change of {}, per cent</text>\n",
      Plot::kWidth, height, summary.plan_only ? "the predicted makespan" : "attention time");
  out += fmt::format(
      "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2:.1f}\"/>\n", at(0.0),
      kTop - 4, height - 10);
  double y = kTop;
  for (const Comparison& c : summary.comparisons) {
    const Estimate& e = (c.attention_us ? *c.attention_us : c.predicted_us).percent;
    const double from = std::min(at(0.0), at(e.value));
    const double to = std::max(at(0.0), at(e.value));
    const char* tone = e.known && e.low > 0.0 ? "worse" : e.known && e.high < 0.0 ? "better" : "1";
    const double middle = y + kRow / 2;
    out += fmt::format(
        "<text class=\"label\" text-anchor=\"end\" x=\"{:.0f}\" y=\"{:.1f}\">{}</text>"
        "<rect class=\"f{}\" fill-opacity=\".75\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
        "height=\"14\" rx=\"2\"><title>{}: {:+.2f} %</title></rect>",
        kLabel - 8, middle + 4, escape_html(c.name), tone, from, middle - 7,
        std::max(to - from, 0.8), escape_html(c.change), e.value);
    double end = std::max(at(e.value), at(0.0));
    if (e.known) {
      out += fmt::format(
          "<path class=\"whisker\" d=\"M{0:.1f} {2:.1f}H{1:.1f}M{0:.1f} {3:.1f}v8M{1:.1f} "
          "{3:.1f}v8\"/>",
          at(e.low), at(e.high), middle, middle - 4);
      end = std::max(end, at(e.high));
    }
    const bool fits = end + 52.0 < Plot::kWidth;
    out += fmt::format(
        "<text class=\"note\" text-anchor=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{:+.1f} %</text>\n",
        fits ? "start" : "end", fits ? end + 6 : from - 8, middle + 4, e.value);
    y += kRow;
  }
  return out + "</svg>\n";
}

}  // namespace plait::serve
