// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "serve/hash.h"

namespace plait::serve {
namespace {

constexpr double kZ95 = 1.959963984540054;
constexpr std::size_t kMaxBlocks = 200;
constexpr std::size_t kMinBlocks = 8;  // fewer say nothing about their spread
constexpr int kResamples = 1000;

double sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

Estimate quantile(std::span<const double> sorted, double q) {
  Estimate estimate;
  if (sorted.empty()) return estimate;
  const auto n = static_cast<double>(sorted.size());
  const double rank = q * (n - 1.0);
  const auto below = static_cast<std::size_t>(rank);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  estimate.value =
      sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
  estimate.low = estimate.high = estimate.value;
  const double half = kZ95 * std::sqrt(n * q * (1.0 - q));
  const double low = std::floor(n * q - half);
  const double high = std::ceil(n * q + half);
  if (low >= 0.0 && high < n) {
    estimate.low = sorted[static_cast<std::size_t>(low)];
    estimate.high = sorted[static_cast<std::size_t>(high)];
    estimate.known = true;
  }
  return estimate;
}

Estimate mean_estimate(std::span<const double> values) {
  Estimate estimate;
  if (values.empty()) return estimate;
  const std::size_t n = values.size();
  estimate.value = sum(values) / static_cast<double>(n);
  estimate.low = estimate.high = estimate.value;
  const std::size_t blocks = std::min(kMaxBlocks, n);
  if (blocks < kMinBlocks) return estimate;
  std::vector<double> totals(blocks);
  std::vector<double> sizes(blocks);
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::size_t begin = b * n / blocks;
    const std::size_t end = (b + 1) * n / blocks;
    totals[b] = sum(values.subspan(begin, end - begin));
    sizes[b] = static_cast<double>(end - begin);
  }
  Random random(0x626f6f74);
  std::vector<double> means(kResamples);
  for (double& mean : means) {
    double total = 0.0;
    double size = 0.0;
    for (std::size_t i = 0; i < blocks; ++i) {
      const auto b = static_cast<std::size_t>(random.next() % blocks);
      total += totals[b];
      size += sizes[b];
    }
    mean = total / size;
  }
  std::sort(means.begin(), means.end());
  estimate.low = means[static_cast<std::size_t>(0.025 * kResamples)];
  estimate.high = means[static_cast<std::size_t>(0.975 * kResamples) - 1];
  estimate.known = true;
  return estimate;
}

Distribution describe(std::span<const double> values) {
  Distribution d;
  d.count = static_cast<std::int64_t>(values.size());
  if (values.empty()) return d;
  d.total = sum(values);
  d.mean = mean_estimate(values);
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  d.minimum = sorted.front();
  d.maximum = sorted.back();
  d.p50 = quantile(sorted, 0.50);
  d.p90 = quantile(sorted, 0.90);
  d.p99 = quantile(sorted, 0.99);
  return d;
}

PairedDifference compare_paired(std::span<const double> before, std::span<const double> after) {
  PairedDifference result;
  const std::size_t n = std::min(before.size(), after.size());
  result.count = static_cast<std::int64_t>(n);
  if (n == 0) return result;
  std::vector<double> differences(n);
  std::vector<double> percents;
  for (std::size_t i = 0; i < n; ++i) {
    differences[i] = after[i] - before[i];
    if (before[i] > 0.0) percents.push_back(100.0 * differences[i] / before[i]);
    if (differences[i] > 0.0) ++result.worse;
  }
  result.worst = *std::max_element(differences.begin(), differences.end());
  std::sort(percents.begin(), percents.end());
  result.median_percent = quantile(percents, 0.5);
  result.difference = mean_estimate(differences);
  const double base = sum(before.subspan(0, n)) / static_cast<double>(n);
  if (base > 0.0) {
    result.percent = result.difference;
    result.percent.value *= 100.0 / base;
    result.percent.low *= 100.0 / base;
    result.percent.high *= 100.0 / base;
  }
  return result;
}

}  // namespace plait::serve
