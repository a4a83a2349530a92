// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Plots as inline SVG. Colours come from CSS variables of the page (--series-1 ...), so one
// drawing serves light and dark; every mark carries a <title> that browsers show on hover.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plait::serve {

struct Point {
  double x = 0.0;
  double y = 0.0;
};

struct Axis {
  std::string label;
  std::string unit;  // as human() knows them; "" for plain numbers
  bool logarithmic = false;
  double low = 0.0;
  double high = 1.0;

  /// Fits the axis to values (positive ones only if logarithmic), with round ends; a linear axis
  /// starts at 0.
  void fit(std::span<const double> values);
  /// Position in 0..1; may fall outside for values beyond the ends.
  double at(double value) const;
  std::vector<double> ticks() const;
};

class Plot {
 public:
  static constexpr double kWidth = 560.0;
  static constexpr double kHeight = 309.0;

  Plot(std::string title, Axis x, Axis y);

  /// `series` counts from 1; a name puts it into the legend.
  void line(std::span<const Point> points, int series, std::string_view name);
  /// Filled from `below` (same x) up to `points`; an empty `below` is the axis.
  void area(std::span<const Point> points, std::span<const Point> below, int series,
            std::string_view name);
  void dots(std::span<const Point> points, int series, std::string_view name);
  /// A dashed reference line with a label at its end.
  void reference(Point from, Point to, std::string_view label);

  std::string svg() const;

 private:
  double px(double x) const;
  double py(double y) const;
  std::string path(std::span<const Point> points) const;

  std::string title_;
  Axis x_, y_;
  std::string marks_;
  std::vector<std::pair<int, std::string>> legend_;
};

/// The empirical distribution of values as a step curve of at most 400 points, y in 0..1.
std::vector<Point> cumulative(std::span<const double> values);

/// Text with & < > and quotes escaped for HTML and SVG.
std::string escape_html(std::string_view text);

}  // namespace plait::serve
