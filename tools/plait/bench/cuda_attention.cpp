// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Times of one run on the device: decode, prefill, variants.
#if PLAIT_WITH_CUDA
#include <fmt/format.h>

#include <utility>

#include "plait/bench/cuda_groups.h"
#include "plait/bench/cuda_matrix_product.h"

namespace plait::bench {
namespace {

std::string heads_of(const AttentionSpec& spec) {
  return fmt::format("{}/{}x{}", spec.num_qo_heads, spec.num_kv_heads, spec.head_dim_qk);
}

std::string pages_of(const AttentionSpec& spec) {
  return spec.kv_kind == KvKind::kRagged ? "ragged" : fmt::format("page {}", spec.page_size);
}

const char* mask_of(const AttentionSpec& spec) {
  return spec.mask == MaskKind::kCausal ? "causal" : "full";
}

std::vector<CaseRequest> repeated(int count, CaseRequest request) {
  return std::vector<CaseRequest>(static_cast<std::size_t>(count), request);
}

Row row_of(CudaCase& problem, std::string name, const Sample& sample) {
  Row row;
  row.name = std::move(name);
  row.family = problem.attention().family();
  row.sample = sample;
  row.gigabytes_per_second = problem.kv_bytes() / sample.median() / 1e9;
  row.teraflops = problem.flops() / sample.median() / 1e12;
  return row;
}

/// Whether plain reads of the problem's size are faster if the L2 gives their lines up first.
bool evict_first_is_faster(CudaTimer& timer, CudaCase& problem, int repetitions) {
  Sample kept;
  Sample evicted;
  measure_in_turn(
      timer, repetitions, [&] { problem.plain_read(false); }, [&] { problem.plain_read(true); },
      kept, evicted);
  return evicted.median() < kept.median();
}

void decode_row(CudaTimer& timer, const std::string& shape, const AttentionSpec& spec,
                const std::vector<CaseRequest>& requests, const CudaBenchOptions& options,
                Report& report, std::int32_t shared_prefix = 0) {
  const std::string name =
      fmt::format("decode {} {} {} bf16", shape, heads_of(spec), pages_of(spec));
  if (!report.wants(name)) return;
  CudaCaseOptions case_options = options.problem;
  case_options.shared_prefix = shared_prefix;
  const auto problem = open_case(timer, name, spec, requests, case_options, report);
  if (problem == nullptr) return;
  const bool evict_first = evict_first_is_faster(timer, *problem, options.repetitions);
  Sample bound;
  Sample sample;
  measure_in_turn(
      timer, options.repetitions, [&] { problem->plain_read(evict_first); },
      [&] { problem->run(); }, bound, sample);
  Row row = row_of(*problem, name, sample);
  row.bound_name = evict_first ? "plain read (evict first) GB/s" : "plain read GB/s";
  row.bound = problem->kv_bytes() / bound.median() / 1e9;
  row.ratio = row.gigabytes_per_second / row.bound;
  report.add(row);
}

}  // namespace

void bench_decode(CudaTimer& timer, const CudaBenchOptions& options, Report& report) {
  const std::pair<int, int> shapes[] = {{1, 512},   {16, 512},  {64, 512},  {1, 8192},  {16, 2048},
                                        {64, 2048}, {64, 4096}, {64, 8192}, {256, 8192}};
  const BenchShape heads[] = {{.kv_heads = 8},
                              {.qo_heads = 64, .kv_heads = 8},
                              {.kv_heads = 32},
                              {.kv_heads = 8, .head_dim = 64},
                              {.qo_heads = 16, .kv_heads = 8, .head_dim = 256}};
  for (const BenchShape& head : heads) {
    const AttentionSpec spec = bench_spec(head);
    for (const auto& [batch, kv] : shapes) {
      decode_row(timer, fmt::format("{}x{}", batch, kv), spec, repeated(batch, {1, kv}), options,
                 report);
    }
    decode_row(timer, "64 skewed", spec, skewed_requests(64, 1), options, report);
  }
  const AttentionSpec one_token_pages = bench_spec({.page_size = 1});
  for (const auto& [batch, kv] : {std::pair{64, 2048}, std::pair{64, 8192}, std::pair{256, 8192}}) {
    decode_row(timer, fmt::format("{}x{}", batch, kv), one_token_pages, repeated(batch, {1, kv}),
               options, report);
  }
  decode_row(timer, "64 skewed", one_token_pages, skewed_requests(64, 1), options, report);
  decode_row(timer, "64x128 behind a shared prefix of 32768", bench_spec({}),
             repeated(64, {1, 128}), options, report, 32768);
}

void bench_prefill(CudaTimer& timer, const CudaBenchOptions& options, Report& report) {
  const MatrixProduct product(timer);
  if (!product.available()) report.line("# no matrix product as a bound: " + product.reason());
  const std::pair<int, int> shapes[] = {{16, 512}, {8, 1024}, {4, 2048},
                                        {2, 4096}, {1, 8192}, {1, 16384}};
  const BenchShape layouts[] = {
      {.kv_heads = 32, .page_size = 0},
      {.kv_heads = 8, .page_size = 0},
      {.kv_heads = 8, .page_size = 16},
      {.kv_heads = 8, .page_size = 1},
      {.kv_heads = 32, .head_dim = 64, .page_size = 0},
      {.qo_heads = 16, .kv_heads = 16, .head_dim = 256, .page_size = 0},
  };
  for (BenchShape shape : layouts) {
    for (const auto& [batch, length] : shapes) {
      for (const MaskKind mask : {MaskKind::kNone, MaskKind::kCausal}) {
        shape.mask = mask;
        const AttentionSpec spec = bench_spec(shape);
        const std::string name = fmt::format("prefill {}x{} {} {} {} bf16", batch, length,
                                             heads_of(spec), pages_of(spec), mask_of(spec));
        if (!report.wants(name)) continue;
        const auto problem = open_case(timer, name, spec, repeated(batch, {length, length}),
                                       options.problem, report);
        if (problem == nullptr) continue;
        Sample bound;
        Sample sample;
        const auto run_product = [&] {
          if (product.available()) product();
        };
        measure_in_turn(
            timer, options.repetitions, run_product, [&] { problem->run(); }, bound, sample);
        Row row = row_of(*problem, name, sample);
        if (product.available()) {
          row.bound_name = "matrix product TFLOP/s";
          row.bound = MatrixProduct::kFlops / bound.median() / 1e12;
          row.ratio = row.teraflops / row.bound;
        }
        report.add(row);
      }
    }
  }
}

void bench_variants(CudaTimer& timer, const CudaBenchOptions& options, Report& report) {
  AttentionSpec plain_spec =
      bench_spec({.kv_heads = 32, .page_size = 0, .mask = MaskKind::kCausal});
  AttentionSpec soft_cap = plain_spec;
  soft_cap.logits_soft_cap = 30.0;
  AttentionSpec alibi = plain_spec;
  alibi.alibi = true;
  for (const auto& [batch, length] : {std::pair{4, 2048}, std::pair{1, 16384}}) {
    const std::vector<CaseRequest> requests = repeated(batch, {length, length});
    for (const auto& [variant, spec] : {std::pair{"soft cap 30", soft_cap}, {"ALiBi", alibi}}) {
      const std::string name = fmt::format("prefill {}x{} {} ragged causal {} bf16", batch, length,
                                           heads_of(spec), variant);
      if (!report.wants(name)) continue;
      const auto plain = open_case(timer, name, plain_spec, requests, options.problem, report);
      const auto problem = open_case(timer, name, spec, requests, options.problem, report);
      if (plain == nullptr || problem == nullptr) continue;
      Sample bound;
      Sample sample;
      measure_in_turn(
          timer, options.repetitions, [&] { plain->run(); }, [&] { problem->run(); }, bound,
          sample);
      Row row = row_of(*problem, name, sample);
      row.bound_name = fmt::format("plain causal {} TFLOP/s", plain->attention().family());
      row.bound = plain->flops() / bound.median() / 1e12;
      row.ratio = row.teraflops / row.bound;
      report.add(row);
    }
  }
}

}  // namespace plait::bench
#endif  // PLAIT_WITH_CUDA
