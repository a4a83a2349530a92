// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/bench/calibrate.h"

#include <fmt/format.h>

#include <algorithm>

#include "cpu/item.h"
#include "cpu/kernel_table.h"
#include "plait/bench/attention_case.h"
#include "plan/planner.h"

namespace plait::bench {
namespace {

constexpr int kLong = 8192;
constexpr int kChunk = 1024;

/// The terms of a CostModel, in ns.
struct Terms {
  double item = 0;
  double tile = 0;
  double token = 0;
  double state_row = 0;
};

AttentionSpec spec_of(std::int32_t group, DType dtype) {
  AttentionSpec spec;
  spec.num_kv_heads = 8;
  spec.num_qo_heads = 8 * group;
  spec.head_dim_qk = spec.head_dim_vo = 128;
  spec.q_dtype = spec.kv_dtype = spec.o_dtype = dtype;
  spec.mask = MaskKind::kNone;
  return spec;
}

/// Time of one KV head of one request of `qo_len` rows and `kv_len` keys, of a run of as many
/// requests as keep their rows in cache.
double median_ns(const AttentionSpec& spec, int qo_len, int kv_len, const Policy& policy,
                 int repetitions) {
  const int count =
      std::clamp(2 * kLong / std::max(kv_len, cpu::kKvTile), 1, cpu::kQueryTile / qo_len);
  CaseOptions options;
  options.threads = 1;
  options.policy = policy;
  AttentionCase problem(
      spec, std::vector<CaseRequest>(static_cast<std::size_t>(count), {qo_len, kv_len}), options);
  problem.run();
  Sample sample;
  for (int i = 0; i < repetitions; ++i) {
    sample.seconds.push_back(seconds_of([&] { problem.run(); }));
  }
  return sample.median() * 1e9 / (count * spec.num_kv_heads);
}

/// Keys within one KV tile tell what a token costs, further tiles what a tile costs, and a request
/// cut into chunks what a partial state costs, written and merged.
Terms measure(const AttentionSpec& spec, int qo_len, int repetitions) {
  Policy unsplit;
  unsplit.kind = PolicyKind::kUnsplit;
  Policy chunks;
  chunks.kind = PolicyKind::kFixedChunk;
  chunks.kv_chunk = kChunk;
  const double one = median_ns(spec, qo_len, 1, unsplit, repetitions);
  const double tile = median_ns(spec, qo_len, cpu::kKvTile, unsplit, repetitions);
  const double whole = median_ns(spec, qo_len, kLong, unsplit, repetitions);
  const double cut = median_ns(spec, qo_len, kLong, chunks, repetitions);

  Terms terms;
  constexpr int kFurtherTiles = kLong / cpu::kKvTile - 1;
  const double further_tile = (whole - tile) / kFurtherTiles;
  terms.token = std::clamp((tile - one) / (cpu::kKvTile - 1), 0.0, further_tile / cpu::kKvTile);
  terms.tile = further_tile - terms.token * cpu::kKvTile;
  terms.item = std::max(0.0, one - terms.tile - terms.token);
  constexpr int kParts = kLong / kChunk;
  const int rows = qo_len * spec.group_size();
  terms.state_row = std::max(
      0.0, (cut - whole - (kParts - 1) * terms.item) / (static_cast<double>(kParts) * rows));
  return terms;
}

}  // namespace

void calibrate(int repetitions, Report& report) {
  report.line("device,family,q_tile,head_dim,per_item,per_tile,per_kv_token,per_state_row");
  // In the form of the table: units of 1/16 ns. Few rows read, which is said for 16-bit keys; full
  // tiles compute, in f32.
  const auto row = [&](int q_tile, const AttentionSpec& spec, const Terms& terms) {
    report.line(fmt::format("{},cpu,{},{},{:.0f},{:.0f},{:.0f},{:.0f}", cpu::kernels().name, q_tile,
                            spec.head_dim_qk, terms.item * kCostUnitsPerNs,
                            terms.tile * kCostUnitsPerNs, terms.token * kCostUnitsPerNs,
                            terms.state_row * kCostUnitsPerNs));
  };
  const AttentionSpec decode = spec_of(4, DType::kBF16);
  row(cpu::kernels().stream_max_rows, decode, measure(decode, 1, repetitions));
  const AttentionSpec prefill = spec_of(1, DType::kF32);
  row(cpu::kQueryTile, prefill, measure(prefill, cpu::kQueryTile, repetitions));
}

}  // namespace plait::bench
