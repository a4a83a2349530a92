// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/stats.h"

#include <gtest/gtest.h>

#include <cmath>

#include "plait/error.h"
#include "serve/hash.h"
#include "serve/workload.h"

namespace plait::serve {
namespace {

TEST(Stats, QuantilesOfAKnownSeries) {
  std::vector<double> values;
  for (int i = 0; i <= 1000; ++i) values.push_back(static_cast<double>((i * 17) % 1001));
  const Distribution d = describe(values);
  EXPECT_EQ(d.count, 1001);
  EXPECT_DOUBLE_EQ(d.p50.value, 500.0);
  EXPECT_DOUBLE_EQ(d.p90.value, 900.0);
  EXPECT_DOUBLE_EQ(d.p99.value, 990.0);
  EXPECT_DOUBLE_EQ(d.mean.value, 500.0);
  EXPECT_EQ(d.minimum, 0.0);
  EXPECT_EQ(d.maximum, 1000.0);
  EXPECT_TRUE(d.p99.known);
}

TEST(Stats, AnIntervalThatTheSampleCannotSupportIsNotClaimed) {
  const std::vector<double> three = {1.0, 2.0, 3.0};
  const Distribution d = describe(three);
  EXPECT_FALSE(d.p99.known);
  EXPECT_FALSE(d.mean.known);
  EXPECT_EQ(d.p50.value, 2.0);
  EXPECT_EQ(describe({}).count, 0);
}

// Of 200 independent samples, the 95 % intervals should hold the truth about 190 times; 175 is
// nine standard deviations below half that confidence and well above an interval of 80 %.
TEST(Stats, IntervalsCoverTheTruth) {
  Random random(20261129);
  int quantile_hits = 0;
  int mean_hits = 0;
  for (int sample = 0; sample < 200; ++sample) {
    std::vector<double> values;
    for (int i = 0; i < 400; ++i) values.push_back(-std::log1p(-random.uniform()));
    const Distribution d = describe(values);
    const double p90 = std::log(10.0);
    if (d.p90.low <= p90 && p90 <= d.p90.high) ++quantile_hits;
    if (d.mean.low <= 1.0 && 1.0 <= d.mean.high) ++mean_hits;
  }
  EXPECT_GE(quantile_hits, 180);
  EXPECT_GE(mean_hits, 180);
  EXPECT_LT(quantile_hits + mean_hits, 400);
}

TEST(Stats, BlocksSeeThatNeighboursAreAlike) {
  // 100 plateaus of 100 equal values: 10000 values, 100 independent ones.
  Random random(7);
  std::vector<double> values;
  for (int plateau = 0; plateau < 100; ++plateau) {
    values.insert(values.end(), 100, random.uniform());
  }
  const Estimate mean = mean_estimate(values);
  const double naive_width = 2 * 1.96 * 0.2887 / std::sqrt(10000.0);
  EXPECT_GT(mean.high - mean.low, 5 * naive_width);
}

TEST(Stats, PairedDifferencesCountRegressions) {
  std::vector<double> before;
  std::vector<double> after;
  for (int i = 0; i < 100; ++i) {
    before.push_back(10.0);
    after.push_back(i < 10 ? 13.0 : 9.0);
  }
  const PairedDifference d = compare_paired(before, after);
  EXPECT_DOUBLE_EQ(d.difference.value, (10 * 3.0 - 90.0) / 100.0);
  EXPECT_DOUBLE_EQ(d.percent.value, -6.0);
  EXPECT_DOUBLE_EQ(d.median_percent.value, -10.0);
  EXPECT_EQ(d.worse, 10);
  EXPECT_DOUBLE_EQ(d.worst, 3.0);
}

TEST(Workload, IsTheSameForTheSameSeedAndAnotherForAnother) {
  for (const char* kind :
       {"sharegpt-like", "uniform:100:200", "skewed", "shared-prefix", "parallel:4"}) {
    SCOPED_TRACE(kind);
    const Trace a = generate_workload(kind, 100, 1);
    const Trace b = generate_workload(kind, 100, 1);
    const Trace c = generate_workload(kind, 100, 2);
    bool same = true;
    bool other = false;
    std::int64_t arrival = 0;
    for (std::size_t i = 0; i < 100; ++i) {
      const TraceRequest& r = a.requests[i];
      same = same && r.input_tokens == b.requests[i].input_tokens &&
             r.arrival_ns == b.requests[i].arrival_ns && r.block_keys == b.requests[i].block_keys;
      other = other || r.input_tokens != c.requests[i].input_tokens;
      EXPECT_GE(r.input_tokens, 1);
      EXPECT_GE(r.output_tokens, 1);
      EXPECT_GE(r.arrival_ns, arrival);
      arrival = r.arrival_ns;
      EXPECT_EQ(std::ssize(r.block_keys), (r.input_tokens + 511) / 512);
    }
    EXPECT_TRUE(same);
    EXPECT_TRUE(other);
  }
}

TEST(Workload, KeepsItsPromises) {
  const Trace uniform = generate_workload("uniform:100:120", 500, 3);
  for (const TraceRequest& r : uniform.requests) {
    EXPECT_TRUE(r.input_tokens >= 100 && r.input_tokens <= 120);
    EXPECT_EQ(r.output_tokens, 256);
  }
  const Trace parallel = generate_workload("parallel:4", 8, 3);
  EXPECT_EQ(parallel.requests[0].block_keys, parallel.requests[3].block_keys);
  EXPECT_EQ(parallel.requests[0].arrival_ns, parallel.requests[3].arrival_ns);
  EXPECT_NE(parallel.requests[0].block_keys[0], parallel.requests[4].block_keys[0]);
}

TEST(Workload, RefusesOthers) {
  for (const char* kind :
       {"", "chat", "uniform", "uniform:5", "uniform:9:5", "uniform:0:5", "uniform:1:2:3",
        "uniform:1:x", "parallel", "parallel:0", "parallel:2000", "skewed:1",
        "shared-prefix:", "uniform:1:99999999999"}) {
    EXPECT_THROW(generate_workload(kind, 10, 1), Error) << kind;
  }
  EXPECT_THROW(generate_workload("skewed", 0, 1), Error);
}

}  // namespace
}  // namespace plait::serve
