// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The free operations on the CPU, in bytes per second of what they read and write. Attention
// itself is measured by `plait bench`, next to its bounds.
#include <benchmark/benchmark.h>
#include <plait/plait.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace {

using plait::DType;
using plait::Tensor;

constexpr std::int64_t kHeads = 32;
constexpr std::int64_t kKvHeads = 8;
constexpr std::int64_t kDim = 128;

const plait::Engine& engine() {
  static const plait::Engine instance;
  return instance;
}

std::size_t count(std::int64_t value) { return static_cast<std::size_t>(value); }

void merge_two_states(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  std::vector<float> a(count(rows * kHeads * kDim), 1.0F);
  std::vector<float> b(a.size(), 3.0F);
  std::vector<float> out(a.size());
  std::vector<float> lse_a(count(rows * kHeads), 0.5F);
  std::vector<float> lse_b(lse_a.size(), -0.5F);
  std::vector<float> lse(lse_a.size());
  const auto o = [rows](const std::vector<float>& data) {
    return Tensor::contiguous(data.data(), DType::kF32, {rows, kHeads, kDim});
  };
  const auto l = [rows](const std::vector<float>& data) {
    return Tensor::contiguous(data.data(), DType::kF32, {rows, kHeads});
  };
  for (auto _ : state) {
    plait::merge_state(engine(), o(a), l(lse_a), o(b), l(lse_b), o(out), l(lse));
    benchmark::DoNotOptimize(out.data());
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(3 * (a.size() + lse.size()) * sizeof(float)));
}
BENCHMARK(merge_two_states)->Arg(1)->Arg(64)->Arg(1024)->UseRealTime();

void append_to_pages(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  constexpr std::int64_t kPageSize = 16;
  const std::int64_t pages = (tokens + kPageSize - 1) / kPageSize;
  const std::vector<std::uint16_t> kv(count(tokens * kKvHeads * kDim), 0x3F80);
  std::vector<std::uint16_t> k_cache(count(pages * kPageSize * kKvHeads * kDim));
  std::vector<std::uint16_t> v_cache(k_cache.size());
  const std::vector<std::int32_t> batch(count(tokens), 0);
  std::vector<std::int32_t> positions(count(tokens));
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<std::int32_t> indptr = {0, static_cast<std::int32_t>(pages)};
  std::vector<std::int32_t> ids(count(pages));
  std::iota(ids.rbegin(), ids.rend(), 0);
  const auto i32 = [](const std::vector<std::int32_t>& data) {
    return Tensor::contiguous(data.data(), DType::kI32, {static_cast<std::int64_t>(data.size())});
  };
  const Tensor rows = Tensor::contiguous(kv.data(), DType::kBF16, {tokens, kKvHeads, kDim});
  const auto cache = [pages](const std::vector<std::uint16_t>& data) {
    return Tensor::contiguous(data.data(), DType::kBF16, {pages, kPageSize, kKvHeads, kDim});
  };
  for (auto _ : state) {
    plait::append_paged_kv(engine(), rows, rows, i32(batch), i32(positions), i32(indptr), i32(ids),
                           cache(k_cache), cache(v_cache), plait::KvLayout::kNhd);
    benchmark::DoNotOptimize(k_cache.data());
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(4 * kv.size() * sizeof(std::uint16_t)));
}
BENCHMARK(append_to_pages)->Arg(1)->Arg(256)->Arg(4096)->UseRealTime();

void rotate(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  std::vector<float> x(count(tokens * kHeads * kDim), 1.0F);
  std::vector<std::int32_t> positions(count(tokens));
  std::iota(positions.begin(), positions.end(), 1000);
  plait::RopeSpec rope;
  rope.kind = plait::RopeKind::kHalf;
  const Tensor tensor = Tensor::contiguous(x.data(), DType::kF32, {tokens, kHeads, kDim});
  const Tensor at = Tensor::contiguous(positions.data(), DType::kI32, {tokens});
  for (auto _ : state) {
    plait::apply_rope(engine(), tensor, at, rope, tensor);
    benchmark::DoNotOptimize(x.data());
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(2 * x.size() * sizeof(float)));
}
BENCHMARK(rotate)->Arg(1)->Arg(256)->Arg(2048)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
