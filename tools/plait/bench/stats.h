// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace plait::bench {

/// Seconds of repeated measurements.
struct Sample {
  std::vector<double> seconds;

  double quantile(double q) const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    const double at = q * static_cast<double>(sorted.size() - 1);
    return sorted[static_cast<std::size_t>(at + 0.5)];
  }
  double median() const { return quantile(0.5); }
};

/// What `seconds_of` reads: the time that passes, or the processor time that all threads of the
/// process spend, which a busy machine disturbs less (meaningful with one thread).
enum class Clock { kWall, kProcessor };
inline Clock clock_in_use = Clock::kWall;

inline double now_seconds() {
  timespec time{};
  ::clock_gettime(clock_in_use == Clock::kWall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class Work>
double seconds_of(const Work& work) {
  const double begin = now_seconds();
  work();
  return now_seconds() - begin;
}

/// Runs the case and its bound in turn, so that both see the same state of the machine, after
/// `prepare` (a cache flush), `repetitions` times and once more to warm up.
template <class Prepare, class Bound, class Case>
void measure_in_turn(int repetitions, const Prepare& prepare, const Bound& bound, const Case& work,
                     Sample& bound_sample, Sample& case_sample) {
  for (int i = -1; i < repetitions; ++i) {
    prepare();
    const double b = seconds_of(bound);
    prepare();
    const double c = seconds_of(work);
    if (i < 0) continue;
    bound_sample.seconds.push_back(b);
    case_sample.seconds.push_back(c);
  }
}

}  // namespace plait::bench
