// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// States and their merge, appending to a cache.
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "check/compare.h"
#include "check/field/cases.h"
#include "core/convert.h"
#include "plait/ops.h"

namespace plait::check::field {
namespace {

using oracle::HostTensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A state of `rows` rows, one head, 64 elements; each row constant.
struct State {
  HostTensor o;
  HostTensor lse;
};
State state(const std::vector<double>& values, const std::vector<double>& lse) {
  const auto rows = static_cast<std::int64_t>(values.size());
  State out{HostTensor::zeros(DType::kF32, {rows, 1, 64}, "o"),
            HostTensor::zeros(DType::kF32, {rows, 1}, "lse")};
  out.o.fill([&](const auto& index) { return values[static_cast<std::size_t>(index[0])]; });
  out.lse.fill([&](const auto& index) { return lse[static_cast<std::size_t>(index[0])]; });
  return out;
}

// Merges two states on the device, optionally in place of the first.
State merged(const FieldRun& run, const State& a, const State& b) {
  const Engine engine = run.engine();
  const auto memory = run.memory();
  const Tensor o = memory->output(DType::kF32, a.o.shape);
  const Tensor lse = memory->output(DType::kF32, a.lse.shape);
  merge_state(engine, memory->place(a.o), memory->place(a.lse), memory->place(b.o),
              memory->place(b.lse), o, lse);
  return {memory->fetch(o), memory->fetch(lse)};
}

void expect_state(const FieldRun& run, const State& got, std::int64_t row, double o, double lse,
                  double tolerance, const std::string& what) {
  for (std::int64_t d = 0; d < 64; ++d)
    run.expect_near(got.o.load(row * 64 + d), o, tolerance, what);
  run.expect_near(got.lse.load(row), lse, tolerance, what + ", lse");
}

void merge_with_empty(const FieldRun& run) {
  const State previous = state({0.1, -7.3, 1e-30}, {0.7, -40.1, 88.0});
  const State empty = state({0, 0, 0}, {-kInfinity, -kInfinity, -kInfinity});
  for (const State& result : {merged(run, previous, empty), merged(run, empty, previous)}) {
    const Comparison o = compare_bits(previous.o, result.o, "o");
    const Comparison lse = compare_bits(previous.lse, result.lse, "lse");
    run.expect(o.ok && lse.ok, "merging with the empty state changes no bit: " + o.message);
  }
}

void merge_of_two_empty(const FieldRun& run) {
  const State empty = state({0, 0}, {-kInfinity, -kInfinity});
  const State mixed = state({0, 3}, {-kInfinity, 0});
  State result = merged(run, empty, empty);
  for (std::int64_t row = 0; row < 2; ++row) {
    expect_state(run, result, row, 0, -kInfinity, 0, "two empty states");
  }
  result = merged(run, empty, mixed);
  expect_state(run, result, 1, 3, 0, 0, "an empty and a full one");
  // n-ary equals any fold order, empty ones included; of empty ones alone it is empty.
  const Engine engine = run.engine();
  const auto memory = run.memory();
  HostTensor o = HostTensor::zeros(DType::kF32, {2, 4, 1, 64}, "o");
  HostTensor lse = HostTensor::zeros(DType::kF32, {2, 4, 1}, "lse");
  const double values[] = {0, 2, 0, 5};
  const double lses[] = {-kInfinity, std::log(3.0), -kInfinity, std::log(1.0)};
  o.fill([&](const auto& index) { return values[index[1]]; });
  lse.fill([&](const auto& index) { return index[0] == 0 ? lses[index[1]] : -kInfinity; });
  const std::int64_t o_shape[] = {2, 1, 64};
  const std::int64_t lse_shape[] = {2, 1};
  const Tensor out = memory->output(DType::kF32, o_shape);
  const Tensor out_lse = memory->output(DType::kF32, lse_shape);
  merge_states(engine, memory->place(o), memory->place(lse), out, out_lse);
  const State all{memory->fetch(out), memory->fetch(out_lse)};
  expect_state(run, all, 0, (3 * 2 + 1 * 5) / 4.0, std::log(4.0), 1e-6, "n-ary merge");
  expect_state(run, all, 1, 0, -kInfinity, 0, "n-ary merge of empty states");
  const State folded = merged(run, state({5}, {0}), state({2}, {std::log(3.0)}));
  expect_state(run, folded, 0, (3 * 2 + 1 * 5) / 4.0, std::log(4.0), 1e-6, "the other order");
}

void merge_in_place_and_masked(const FieldRun& run) {
  const Engine engine = run.engine();
  const auto memory = run.memory();
  const std::int64_t o_shape[] = {4, 1, 64};
  const std::int64_t lse_shape[] = {4, 1};
  const State a = state({1, 1, 1, 1}, {0, -kInfinity, 0, 0});
  const State b = state({3, 3, 3, 3}, {0, -kInfinity, 0, 0});
  // Outputs that hold state a first: merged with the empty state, which copies it there.
  const State none = state({0, 0, 0, 0}, {-kInfinity, -kInfinity, -kInfinity, -kInfinity});
  const Tensor o = memory->output(DType::kF32, o_shape);
  const Tensor lse = memory->output(DType::kF32, lse_shape);
  merge_state(engine, memory->place(a.o), memory->place(a.lse), memory->place(none.o),
              memory->place(none.lse), o, lse);
  const std::vector<std::uint8_t> keep{1, 1, 0, 1};
  merge_state(engine, o, lse, memory->place(b.o), memory->place(b.lse), o, lse,
              memory->place_u8(keep));
  const State result{memory->fetch(o), memory->fetch(lse)};
  expect_state(run, result, 0, 2, std::log(2.0), 1e-6, "in place");
  run.expect_near(result.lse.load(1), -kInfinity, 0, "two empty rows in place");
  run.expect(!std::isnan(result.o.load(64)), "two empty rows give no NaN");
  expect_state(run, result, 2, 1, 0, 0, "a masked row keeps state a");
  expect_state(run, result, 3, 2, std::log(2.0), 1e-6, "in place");
  // A strided mask: every second byte of T F F F T F T F.
  const std::vector<std::uint8_t> spread{1, 9, 0, 9, 1, 9, 0, 9};
  Tensor strided = memory->place_u8(spread);
  strided.shape[0] = 4;
  strided.strides[0] = 2;
  const Tensor o2 = memory->output(DType::kF32, o_shape);
  const Tensor lse2 = memory->output(DType::kF32, lse_shape);
  try {
    merge_state(engine, memory->place(a.o), memory->place(a.lse), memory->place(b.o),
                memory->place(b.lse), o2, lse2, strided);
  } catch (const Error& error) {
    run.expect(std::string(error.what()).find("mask") != std::string::npos, error.what());
    return;  // a layout that is not served is refused by name
  }
  const State masked{memory->fetch(o2), memory->fetch(lse2)};
  expect_state(run, masked, 0, 2, std::log(2.0), 1e-6, "strided mask, true");
  expect_state(run, masked, 2, 2, std::log(2.0), 1e-6, "strided mask, true");
  expect_state(run, masked, 3, 1, 0, 0, "strided mask, false");
}

void natural_base(const FieldRun& run) {
  // Uniform scores: a suffix of n keys after a prefix of m weighs n / (m + n).
  struct Lengths {
    std::int64_t prefix, suffix;
  };
  for (const Lengths lengths : {Lengths{8, 2}, Lengths{3072, 64}}) {
    const auto part = [&](std::int64_t keys, const char* value) {
      Json document = paged({{1}, {keys}, 1, 1, 64, 64, 16});
      fill(document["q"], "zeros");
      fill(document["kv"]["v_cache"], value);
      document["state"] = true;
      const RunResult result = run.run(document);
      run.expect_lse(result, 0, 0, std::log(keys), 1e-5, "natural logarithm");
      return State{result.o, result.lse};
    };
    const State both = merged(run, part(lengths.prefix, "zeros"), part(lengths.suffix, "ones"));
    const double weight =
        static_cast<double>(lengths.suffix) / static_cast<double>(lengths.prefix + lengths.suffix);
    expect_state(run, {both.o, both.o}, 0, weight, weight, 1e-6, "weight of the suffix");
  }
}

void append_saturates(const FieldRun& run) {
  const Engine engine = run.engine();
  const auto memory = run.memory();
  const double values[] = {448, -448, 449, 1e6, -kInfinity, 0.4375, 464, 3};
  HostTensor k = HostTensor::zeros(DType::kF32, {1, 1, 8}, "k");
  k.fill([&](const auto& index) { return values[index[2]]; });
  const std::int64_t cache_shape[] = {2, 4, 1, 8};
  const Tensor k_cache = memory->output(DType::kF8E4M3, cache_shape);
  const Tensor v_cache = memory->output(DType::kF8E4M3, cache_shape);
  const std::vector<std::int64_t> batch{0};
  const std::vector<std::int64_t> position{5};
  const std::vector<std::int64_t> indptr{0, 2};
  const std::vector<std::int64_t> ids{1, 0};
  append_paged_kv(engine, memory->place(k), memory->place(k), memory->place_i32(batch),
                  memory->place_i32(position), memory->place_i32(indptr), memory->place_i32(ids),
                  k_cache, v_cache, KvLayout::kNhd);
  const HostTensor cache = memory->fetch(k_cache);
  const double expected[] = {448, -448, 448, 448, -448, 0.4375, 448, 3};
  for (std::int64_t d = 0; d < 8; ++d) {
    // Position 5 is slot 1 of the request's second page, which is page 0.
    run.expect_near(cache.load(8 + d), expected[d], 0, "appended value " + std::to_string(d));
    run.expect(std::isnan(cache.load(d)), "its neighbour stays");
  }
}

// Each index tensor of an append as 64-bit words, which read as 32-bit ones put a zero behind every
// index, and as every second element of a wider list: both are refused by name, and nothing is
// written.
void append_index_dtypes(const FieldRun& run) {
  const Engine engine = run.engine();
  const auto memory = run.memory();
  HostTensor k = HostTensor::zeros(DType::kF32, {2, 1, 64}, "k");
  k.fill([](const auto& index) { return 1.0 + static_cast<double>(index[0]); });
  const std::int64_t cache_shape[] = {2, 2, 1, 64};
  const Tensor k_cache = memory->output(DType::kF32, cache_shape);
  const Tensor v_cache = memory->output(DType::kF32, cache_shape);
  const std::pair<const char*, std::vector<std::int64_t>> indices[] = {
      {"batch_indices", {0, 1}},
      {"positions", {1, 0}},
      {"page_indptr", {0, 1, 2}},
      {"page_ids", {1, 0}},
  };
  const auto append = [&](const std::vector<Tensor>& t) {
    append_paged_kv(engine, memory->place(k), memory->place(k), t[0], t[1], t[2], t[3], k_cache,
                    v_cache, KvLayout::kNhd);
  };
  std::vector<Tensor> right;
  for (const auto& [name, values] : indices) right.push_back(memory->place_i32(values));
  for (std::size_t n = 0; n < right.size(); ++n) {
    const auto& [name, values] = indices[n];
    std::vector<std::int64_t> spread;
    for (const std::int64_t value : values) spread.insert(spread.end(), {value, 0});
    std::vector<Tensor> wide = right;
    wide[n] = memory->place_i32(spread);
    wide[n].shape[0] = right[n].shape[0];
    std::vector<Tensor> strided = wide;
    wide[n].dtype = DType::kI64;
    strided[n].strides[0] = 2;
    run.expect_error([&] { append(wide); }, name, std::string("64-bit ") + name);
    run.expect_error([&] { append(strided); }, name, std::string("strided ") + name);
  }
  const HostTensor untouched = memory->fetch(k_cache);
  for (std::int64_t n = 0; n < untouched.size(); ++n) {
    run.expect(std::isnan(untouched.load(n)), "a refused append writes nothing");
  }
  append(right);
  const HostTensor cache = memory->fetch(k_cache);
  run.expect_near(cache.load(3 * 64), 1, 0, "request 0, position 1: slot 1 of page 1");
  run.expect_near(cache.load(0), 2, 0, "request 1, position 0: slot 0 of page 0");
}

// A scale of 1/3 makes quotients that lie just beside ties of the cache's dtype and on them once
// they are rounded to f32. Every backend divides in f32 first, so all write the same words.
void append_divides_in_f32(const FieldRun& run) {
  constexpr float kScale = 1.0F / 3.0F;
  constexpr std::int64_t kTokens = 64;
  HostTensor k = HostTensor::zeros(DType::kF32, {kTokens, 1, 64}, "k");
  std::uint64_t state = 1;
  std::int64_t told_apart = 0;
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2, DType::kF16, DType::kBF16}) {
    // Ties between two neighbours of the dtype, times the scale, rounded to f32.
    const std::uint32_t largest = size_of(dtype) == 1 ? 0x70U : 0x7000U;
    k.fill([&](const auto&) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      const auto low = static_cast<std::uint32_t>((state >> 33) % largest);
      const double tie = (decode(dtype, low) + decode(dtype, low + 1)) / 2;
      return static_cast<double>(static_cast<float>(tie * static_cast<double>(kScale)));
    });
    const std::vector<std::int64_t> batch(kTokens, 0);
    std::vector<std::int64_t> position(kTokens);
    std::iota(position.begin(), position.end(), 0);
    const std::vector<std::int64_t> indptr{0, 1};
    const std::vector<std::int64_t> ids{0};
    const Engine engine = run.engine();
    const auto memory = run.memory();
    const std::int64_t cache_shape[] = {1, kTokens, 1, 64};
    const Tensor k_cache = memory->output(dtype, cache_shape);
    const Tensor v_cache = memory->output(dtype, cache_shape);
    append_paged_kv(engine, memory->place(k), memory->place(k), memory->place_i32(batch),
                    memory->place_i32(position), memory->place_i32(indptr), memory->place_i32(ids),
                    k_cache, v_cache, KvLayout::kNhd, kScale, kScale);
    const HostTensor cache = memory->fetch(k_cache);
    for (std::int64_t n = 0; n < kTokens * 64; ++n) {
      const auto value = static_cast<float>(k.load(n));
      const double once = static_cast<double>(value) / static_cast<double>(kScale);
      const auto quotient = static_cast<double>(value / kScale);
      const double expected = decode(dtype, encode(dtype, quotient, overflow_of(dtype)));
      if (expected != decode(dtype, encode(dtype, once, overflow_of(dtype)))) ++told_apart;
      run.expect_near(cache.load(n), expected, 0,
                      std::string(to_string(dtype)) + " of " + std::to_string(value));
    }
  }
  run.expect(told_apart > 0, "some values tell one rounding from two");
}

constexpr FieldCase kCases[] = {
    {2, "merge_with_the_state_of_no_keys", merge_with_empty},
    {3, "merge_of_two_empty_states", merge_of_two_empty},
    {3, "merge_in_place_and_masked", merge_in_place_and_masked},
    {8, "lse_is_natural", natural_base},
    {10, "append_index_dtypes", append_index_dtypes},
    {23, "append_saturates", append_saturates},
    {23, "append_divides_in_f32", append_divides_in_f32},
};

}  // namespace

std::span<const FieldCase> operation_cases() { return kCases; }

}  // namespace plait::check::field
