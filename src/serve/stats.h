// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Summaries of measured series with honest error bars.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace plait::serve {

/// An estimate with a 95 % confidence interval; low = high = value where the sample is too small
/// for one (`known` false).
struct Estimate {
  double value = 0.0;
  double low = 0.0;
  double high = 0.0;
  bool known = false;
};

struct Distribution {
  std::int64_t count = 0;
  double total = 0.0;
  double minimum = 0.0;
  double maximum = 0.0;
  Estimate mean;  // see mean_estimate
  Estimate p50;
  Estimate p90;
  Estimate p99;
};

/// Quantile of ascending values by linear interpolation; its interval is the pair of order
/// statistics whose ranks cover the binomial 95 % interval (normal approximation), hence free
/// of any assumption about the distribution. It takes the values as independent.
Estimate quantile(std::span<const double> sorted, double q);

/// Mean with a block bootstrap interval: values are averaged over at most 200 runs of consecutive
/// ones, and the runs are resampled (1000 times, seeded), so that steps that resemble their
/// neighbours do not pretend to be independent.
Estimate mean_estimate(std::span<const double> values);

/// Everything above; empty input gives count 0. Complexity O(n log n).
Distribution describe(std::span<const double> values);

/// `after - before` of paired values: mean difference with its interval, the same in per cent of
/// mean(before), the median of the pairs' changes in per cent, and how many pairs got worse
/// (larger).
struct PairedDifference {
  std::int64_t count = 0;
  Estimate difference;
  Estimate percent;
  Estimate median_percent;  // of the pairs' own changes: deaf to a few disturbed steps
  std::int64_t worse = 0;
  double worst = 0.0;  // largest increase of one pair
};
PairedDifference compare_paired(std::span<const double> before, std::span<const double> after);

}  // namespace plait::serve
