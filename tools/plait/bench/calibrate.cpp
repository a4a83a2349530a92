// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/bench/calibrate.h"

#include <fmt/format.h>

#include <algorithm>

#include "cpu/cost.h"
#include "cpu/kernel_table.h"
#include "plait/bench/attention_case.h"

namespace plait::bench {
namespace {

AttentionSpec spec_of(std::int32_t group) {
  AttentionSpec spec;
  spec.num_kv_heads = 8;
  spec.num_qo_heads = 8 * group;
  spec.head_dim_qk = spec.head_dim_vo = 128;
  spec.q_dtype = spec.kv_dtype = spec.o_dtype = DType::kF32;
  spec.mask = MaskKind::kNone;
  return spec;
}

double median_ns(const AttentionSpec& spec, const std::vector<CaseRequest>& requests,
                 int repetitions) {
  CaseOptions options;
  options.threads = 1;
  options.policy.kind = PolicyKind::kUnsplit;
  AttentionCase problem(spec, requests, options);
  problem.run();
  Sample sample;
  for (int i = 0; i < repetitions; ++i)
    sample.seconds.push_back(seconds_of([&] { problem.run(); }));
  return sample.median() * 1e9;
}

}  // namespace

void calibrate(int repetitions, Report& report) {
  // Slope over the length gives the cost of a token, the rest that of an item.
  constexpr int kShort = 64;
  constexpr int kLong = 8192;
  const AttentionSpec decode = spec_of(4);
  const double few_short =
      median_ns(decode, std::vector<CaseRequest>(64, {1, kShort}), repetitions);
  const double few_long = median_ns(decode, std::vector<CaseRequest>(4, {1, kLong}), repetitions);
  const double few_items_short = 64.0 * decode.num_kv_heads;
  const double few_items_long = 4.0 * decode.num_kv_heads;
  const double few_token =
      (few_long / few_items_long - few_short / few_items_short) / (kLong - kShort);
  const double few_item = few_short / few_items_short - few_token * kShort;

  const AttentionSpec prefill = spec_of(1);
  const double full_short = median_ns(prefill, {{64, kShort}}, repetitions) / prefill.num_kv_heads;
  const double full_long = median_ns(prefill, {{64, kLong}}, repetitions) / prefill.num_kv_heads;
  const double full_token = (full_long - full_short) / (kLong - kShort);
  const double full_item = full_short - full_token * kShort;

  // In the form of the table: units of 1/16 ns, few rows for 16-bit K and V (f32 was measured).
  const auto row = [&](int q_tile, double item_ns, double token_ns) {
    report.line(fmt::format("{},cpu,{},{},{:.0f},{:.0f}", cpu::kernels().name, q_tile,
                            decode.head_dim_qk, std::max(item_ns, 0.0) * kCostUnitsPerNs,
                            token_ns * kCostUnitsPerNs));
  };
  report.line("device,family,q_tile,head_dim,per_item,per_kv_token");
  row(cpu::kernels().stream_max_rows, few_item, few_token / 2.0);
  row(64, full_item, full_token);
}

}  // namespace plait::bench
