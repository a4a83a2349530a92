// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "serve/summary.h"
#include "serve/svg_plot.h"

namespace plait::serve {
namespace {

/// Two arms, four steps of 10 ms, two requests: every figure can be derived by hand.
ReplayResult small_result() {
  ReplayResult r;
  r.trace_name = "<hand & made>";
  r.device = "cpu";
  r.family = "cpu";
  r.num_workers = 2;
  r.pool_tokens = 1024;
  r.counts.finished = 2;
  r.counts.prompt_tokens = 100;
  r.counts.reused_tokens = 25;
  r.arms.resize(2);
  r.arms[0].name = "baseline";
  r.arms[1].name = "balancing";
  r.arms[1].feature = Feature::kBalancing;
  r.arm_steps.resize(2);
  r.output_difference = {0.0, 0.125};
  for (int i = 0; i < 4; ++i) {
    StepRecord s;
    s.start_ns = i * 10'000'000;
    s.end_ns = s.start_ns + 10'000'000;
    s.requests = 2;
    s.decode_rows = i > 0 ? 2 : 0;
    s.prefill_rows = i > 0 ? 0 : 100;
    s.kv_tokens = 100 + i;
    s.attention_us = 1000.0F;
    s.plan_us = 10.0F;
    s.predicted_us = 500.0F;
    s.predicted_imbalance = 1.05F;
    s.measured_imbalance = 1.1F;
    s.saving_us = i == 0 ? 0.0F : 20.0F;
    s.workspace_bytes = 1000 * (i + 1);
    s.flops = 2e6;
    r.steps.push_back(s);
    r.arm_steps[0].push_back({1000.0F, 10.0F, 500.0F, 64});
    r.arm_steps[1].push_back({i == 0 ? 900.0F : 1200.0F, 5.0F, 600.0F, 64});
  }
  for (int i = 0; i < 2; ++i) {
    RequestRecord q;
    q.input_tokens = i == 0 ? 10 : 90;
    q.output_tokens = 4;
    q.decode_steps = 3;
    q.first_token_step = 0;
    q.last_token_step = 3;
    q.first_scheduled_ns = 0;
    q.prefill_us = 1000.0;
    q.decode_us = 3000.0;
    r.requests.push_back(q);
  }
  return r;
}

ReplayOptions small_options() {
  ReplayOptions o;
  o.geometry = "layers=2,q=2,kv=1,dim=64";
  o.long_tokens = 50;
  return o;
}

TEST(Summary, DerivesItsFiguresFromTheSteps) {
  const Summary s = summarize(small_result(), small_options());
  EXPECT_EQ(s.computed_rows, 106);
  EXPECT_NEAR(s.attention_seconds, 4e-3, 1e-9);
  EXPECT_NEAR(s.gflops, 4 * 2e6 / 4e-3 / 1e9, 1e-6);
  EXPECT_EQ(s.workspace_high_water, 4000);
  EXPECT_DOUBLE_EQ(s.reused_fraction, 0.25);
  EXPECT_EQ(s.short_requests.requests, 1);
  EXPECT_EQ(s.long_requests.requests, 1);
  // Measured is twice predicted, which does not make the saving of 20 us larger: 10 a layer.
  EXPECT_NEAR(s.break_even.model_ratio, 2.0, 1e-6);
  EXPECT_NEAR(s.break_even.saving_per_layer_us.p50.value, 10.0, 1e-4);
  EXPECT_EQ(s.break_even.steps_not_paid, 1);
  EXPECT_NEAR(s.break_even.break_even_layers, 10.0 / 7.5, 1e-4);
  EXPECT_FALSE(s.break_even.attention_share.has_value());
  ASSERT_EQ(s.comparisons.size(), 1U);
  EXPECT_NEAR(s.comparisons[0].attention_us->percent.value, 12.5, 1e-9);
  EXPECT_EQ(s.comparisons[0].attention_us->worse, 3);
  EXPECT_NEAR(s.comparisons[0].plan_us.percent.value, -50.0, 1e-9);
}

TEST(Summary, TtftAndItlComeOnlyWithTheModelledRest) {
  ReplayOptions options = small_options();
  EXPECT_EQ(report_table(small_result(), summarize(small_result(), options), options).find("TTFT"),
            std::string::npos);
  options.other_time = AffineTime{3990.0, 0.0};
  const Summary s = summarize(small_result(), options);
  // A step lasts 3990 + 1000 + 10 us.
  const auto ends = modelled_step_ends_ms(small_result(), *options.other_time);
  EXPECT_NEAR(ends[3], 20.0, 1e-6);
  EXPECT_NEAR(s.break_even.attention_share->value, 0.2, 1e-6);
  const std::string table = report_table(small_result(), s, options);
  EXPECT_NE(table.find("TTFT (modelled)"), std::string::npos);
  EXPECT_NE(table.find("ITL (modelled)"), std::string::npos);
}

TEST(ReportJson, IsJsonThatHoldsTheFigures) {
  const ReplayOptions options = small_options();
  const Summary s = summarize(small_result(), options);
  const auto json = nlohmann::json::parse(report_json(small_result(), s, options));
  EXPECT_EQ(json["totals"]["steps"], 4);
  EXPECT_EQ(json["totals"]["computed_rows"], 106);
  EXPECT_EQ(json["steps"]["every"], 1);
  EXPECT_EQ(json["steps"]["attention_us"].size(), 4U);
  EXPECT_EQ(json["ablations"][0]["feature"], "balancing");
  EXPECT_NEAR(json["ablations"][0]["attention_us"]["percent"]["value"].get<double>(), 12.5, 1e-6);
}

TEST(ReportHtml, IsSelfContainedAndEscapesNames) {
  const ReplayOptions options = small_options();
  const std::string html = report_html(small_result(), summarize(small_result(), options), options);
  for (const char* forbidden :
       {"http:", "https:", "src=", "href=", "<script", "url(", "@import", "<hand", "nan", "inf "}) {
    EXPECT_EQ(html.find(forbidden), std::string::npos) << forbidden;
  }
  EXPECT_NE(html.find("&lt;hand &amp; made&gt;"), std::string::npos);
  EXPECT_NE(html.find("prefers-color-scheme: dark"), std::string::npos);
  std::size_t open = 0;
  for (std::size_t at = html.find("<svg"); at != std::string::npos;
       at = html.find("<svg", at + 1)) {
    ++open;
  }
  EXPECT_EQ(open, 8U);  // six of the run, break-even, ablations
}

TEST(Human, KeepsThreeDigits) {
  EXPECT_EQ(human(0.0), "0");
  EXPECT_EQ(human(1234.0), "1234");
  EXPECT_EQ(human(12345.0), "12.3k");
  EXPECT_EQ(human(999.6e3), "1.00M");
  EXPECT_EQ(human(12.34, "us"), "12.3 us");
  EXPECT_EQ(human(1234.0, "us"), "1.23 ms");
  EXPECT_EQ(human(2048.0, "bytes"), "2.00 KiB");
}

TEST(Axis, CoversItsValuesWithRoundEnds) {
  Axis linear;
  linear.fit(std::vector<double>{3.0, 87.0});
  EXPECT_EQ(linear.low, 0.0);
  EXPECT_EQ(linear.high, 100.0);
  Axis log;
  log.logarithmic = true;
  log.fit(std::vector<double>{0.0, 3.0, 870.0});
  EXPECT_LE(log.low, 3.0);
  EXPECT_GE(log.high, 870.0);
  EXPECT_GE(log.ticks().size(), 3U);
  Axis empty;
  empty.logarithmic = true;
  empty.fit({});
  EXPECT_TRUE(std::isfinite(empty.at(5.0)));
}

}  // namespace
}  // namespace plait::serve
