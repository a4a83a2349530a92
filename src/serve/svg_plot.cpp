// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "serve/report.h"

namespace plait::serve {
namespace {

constexpr double kLeft = 62.0;
constexpr double kRight = 14.0;
constexpr double kTop = 49.0;  // title, then the y label; the uppermost tick has to clear both
constexpr double kBottom = 44.0;
constexpr double kLetter = 6.0;  // roughly, of any font

/// 1, 2 or 5 times a power of ten, at least `value`.
double nice_ceil(double value) {
  const double decade = std::pow(10.0, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * decade >= value * (1.0 - 1e-9)) return step * decade;
  }
  return 10.0 * decade;
}

/// Ticks are round numbers: no trailing zeros.
std::string tick_text(double value, const std::string& unit) {
  if (unit == "fraction") return fmt::format("{:.0f} %", 100.0 * value);
  std::string text = human(value, unit);
  const std::size_t dot = text.find('.');
  if (dot == std::string::npos) return text;
  std::size_t end = dot + 1;
  while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
  std::size_t keep = end;
  while (text[keep - 1] == '0') --keep;
  if (keep - 1 == dot) --keep;
  return text.erase(keep, end - keep);
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

void Axis::fit(std::span<const double> values) {
  double smallest = INFINITY;
  double largest = -INFINITY;
  for (const double value : values) {
    if (!std::isfinite(value) || (logarithmic && value <= 0.0)) continue;
    smallest = std::min(smallest, value);
    largest = std::max(largest, value);
  }
  if (!(largest >= smallest)) {  // nothing to show
    low = logarithmic ? 1.0 : 0.0;
    high = logarithmic ? 10.0 : 1.0;
    return;
  }
  if (logarithmic) {
    // Ends at 1, 2 or 5 of a decade: whole decades would waste most of a narrow plot.
    high = nice_ceil(largest * 1.0001);
    low = 1.0 / nice_ceil(1.0001 / smallest);
    if (high / low < 10.0) low = high / 10.0;
    return;
  }
  low = 0.0;
  const double step = nice_ceil(std::max(largest, 1e-9) / 5.0);
  high = step * std::ceil(std::max(largest, 1e-9) / step - 1e-9);
}

double Axis::at(double value) const {
  if (!logarithmic) return (value - low) / (high - low);
  return std::log(std::max(value, low * 1e-3) / low) / std::log(high / low);
}

std::vector<double> Axis::ticks() const {
  std::vector<double> out;
  if (!logarithmic) {
    const double step = nice_ceil((high - low) / 6.0);
    const auto count = static_cast<int>((high * (1.0 + 1e-9) - low) / step);
    for (int i = 0; i <= count; ++i) out.push_back(low + i * step);
    return out;
  }
  const double decades = std::log10(high / low);
  const auto first = static_cast<int>(std::floor(std::log10(low)));
  const auto last = static_cast<int>(std::floor(std::log10(high) + 1e-9));
  for (int power = first; power <= last; ++power) {
    const double decade = std::pow(10.0, power);
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor != 1.0 && decades > 2.2) continue;
      const double tick = factor * decade;
      if (tick >= low * (1.0 - 1e-9) && tick <= high * (1.0 + 1e-9)) out.push_back(tick);
    }
  }
  return out;
}

Plot::Plot(std::string title, Axis x, Axis y)
    : title_(std::move(title)), x_(std::move(x)), y_(std::move(y)) {}

double Plot::px(double x) const {
  return kLeft + (kWidth - kLeft - kRight) * std::clamp(x_.at(x), 0.0, 1.0);
}

double Plot::py(double y) const {
  return kHeight - kBottom - (kHeight - kTop - kBottom) * std::clamp(y_.at(y), 0.0, 1.0);
}

std::string Plot::path(std::span<const Point> points) const {
  std::string out;
  for (const Point& p : points) {
    out += fmt::format("{}{:.1f} {:.1f}", out.empty() ? "M" : "L", px(p.x), py(p.y));
  }
  return out;
}

void Plot::line(std::span<const Point> points, int series, std::string_view name) {
  marks_ += fmt::format("<path class=\"line s{}\" d=\"{}\"><title>{}</title></path>\n", series,
                        path(points), escape_html(name));
  if (!name.empty()) legend_.emplace_back(series, std::string(name));
}

void Plot::area(std::span<const Point> points, std::span<const Point> below, int series,
                std::string_view name) {
  if (points.empty()) return;
  std::string outline = path(points);
  if (below.empty()) {
    outline += fmt::format("L{:.1f} {:.1f}L{:.1f} {:.1f}Z", px(points.back().x), py(y_.low),
                           px(points.front().x), py(y_.low));
  } else {
    for (auto it = below.rbegin(); it != below.rend(); ++it) {
      outline += fmt::format("L{:.1f} {:.1f}", px(it->x), py(it->y));
    }
    outline += "Z";
  }
  marks_ += fmt::format("<path class=\"area f{}\" d=\"{}\"><title>{}</title></path>\n", series,
                        outline, escape_html(name));
  if (!name.empty()) legend_.emplace_back(series, std::string(name));
}

void Plot::dots(std::span<const Point> points, int series, std::string_view name) {
  if (points.empty()) return;
  marks_ += fmt::format("<g class=\"dot f{}\">", series);
  for (const Point& p : points) {
    marks_ += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.2\"><title>{}, {}</title>"
        "</circle>",
        px(p.x), py(p.y), human(p.x, x_.unit), human(p.y, y_.unit));
  }
  marks_ += "</g>\n";
  if (!name.empty()) legend_.emplace_back(series, std::string(name));
}

void Plot::reference(Point from, Point to, std::string_view label) {
  // Above the end of a level line. Below a diagonal, far enough down for its whole width.
  const double fall = (py(from.y) - py(to.y)) / std::max(px(to.x) - px(from.x), 1.0);
  const double width = kLetter * static_cast<double>(label.size());
  marks_ += fmt::format(
      "<line class=\"reference\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n"
      "<text class=\"note\" text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
      px(from.x), py(from.y), px(to.x), py(to.y), px(to.x) - 4.0,
      py(to.y) + (fall == 0.0 ? -5.0 : fall * width + 14.0), escape_html(label));
}

std::string Plot::svg() const {
  std::string out = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n"
      "<text class=\"title\" x=\"{}\" y=\"15\">{}</text>\n",
      kWidth, kHeight, escape_html(title_), 0, escape_html(title_));
  for (const double tick : y_.ticks()) {
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"tick\" text-anchor=\"end\" x=\"{3:.1f}\" y=\"{4:.1f}\">{5}</text>\n",
        kLeft, kWidth - kRight, py(tick), kLeft - 6, py(tick) + 3.5,
        escape_html(tick_text(tick, y_.unit)));
  }
  for (const double tick : x_.ticks()) {
    const char* anchor = px(tick) > kWidth - kRight - 12.0 ? "end" : "middle";
    out += fmt::format(
        "<line class=\"mark\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>"
        "<text class=\"tick\" text-anchor=\"{5}\" x=\"{0:.1f}\" y=\"{3:.1f}\">{4}</text>\n",
        px(tick), kHeight - kBottom, kHeight - kBottom + 4, kHeight - kBottom + 16,
        escape_html(tick_text(tick, x_.unit)), anchor);
  }
  out += fmt::format(
      "<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n"
      "<text class=\"label\" text-anchor=\"end\" x=\"{1:.1f}\" y=\"{3:.1f}\">{4}</text>\n"
      "<text class=\"label\" x=\"0\" y=\"32\">{5}</text>\n",
      kLeft, kWidth - kRight, kHeight - kBottom, kHeight - 8, escape_html(x_.label),
      escape_html(y_.label));
  out += marks_;
  // Legend on the line of the x label, from the left: on a narrow screen it is seen first.
  double x = kLeft;
  for (const auto& [series, name] : legend_) {
    out += fmt::format(
        "<rect class=\"f{0}\" x=\"{1:.1f}\" y=\"{2}\" width=\"9\" height=\"9\" rx=\"2\"/>"
        "<text class=\"legend\" x=\"{3:.1f}\" y=\"{4}\">{5}</text>\n",
        series, x, kHeight - 16, x + 13.0, kHeight - 8, escape_html(name));
    x += kLetter * static_cast<double>(name.size()) + 31.0;
  }
  return out + "</svg>\n";
}

std::vector<Point> cumulative(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<Point> points;
  if (sorted.empty()) return points;
  constexpr std::size_t kPoints = 400;
  const std::size_t count = std::min(kPoints, sorted.size());
  points.push_back({sorted.front(), 0.0});
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t rank = count == 1 ? 0 : i * (sorted.size() - 1) / (count - 1);
    points.push_back(
        {sorted[rank], static_cast<double>(rank + 1) / static_cast<double>(sorted.size())});
  }
  return points;
}

}  // namespace plait::serve
