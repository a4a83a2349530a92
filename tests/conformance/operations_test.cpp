// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The free operations on a GPU against the same on the CPU, over random shapes, dtypes and strides.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "check/operand_memory.h"
#include "check/random.h"
#include "plait/ops.h"
#include "support/seed.h"

namespace plait::check {
namespace {

using oracle::HostTensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kRounds = 12;

/// What of the outputs the two backends may differ by: `relative` of the value, and `absolute`.
struct Tolerance {
  double relative, absolute;
};

/// Arithmetic in f32 by other instructions, and one rounding to the output.
Tolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return {0x1p-10, 1e-5};
    case DType::kBF16: return {0x1p-7, 1e-5};
    default: return {1e-5, 1e-6};
  }
}

/// Merges thousands of states, some of them empty, and compares with fp64 under the bound of
/// check/compare.cpp: a fold rounds its lse at every state.
void expect_many_states_merge(DeviceKind kind) {
  constexpr std::int64_t kStates = 20000;
  constexpr std::int64_t kDim = 40;
  const std::vector<double> levels{7.0, 100.0, -1000.0};  // of the lse, a row each
  const auto rows = static_cast<std::int64_t>(levels.size());
  const test::Seed seed(20261201);
  std::printf("%s\n", seed.repro().c_str());
  Random random(seed.value());
  HostTensor o_states = HostTensor::zeros(DType::kF32, {rows, kStates, 1, kDim}, "o_states");
  HostTensor lse_states = HostTensor::zeros(DType::kF32, {rows, kStates, 1}, "lse_states");
  lse_states.fill([&](const auto& index) {
    const double offset = static_cast<double>(random.integer(-4000, 4000)) / 1000.0;
    return random.chance(10) ? -kInfinity : levels[static_cast<std::size_t>(index[0])] + offset;
  });
  o_states.fill([&](const auto& index) {
    const double value = static_cast<double>(random.integer(-1000, 3000)) / 1000.0;
    // What an empty state holds does not count.
    return std::isinf(lse_states.load(index[0] * kStates + index[1])) ? std::nan("") : value;
  });

  EngineOptions options;
  options.device = {kind, 0};
  const auto memory = make_operand_memory(options.device);
  const Tensor o = memory->output(DType::kF32, std::vector{rows, std::int64_t{1}, kDim});
  const Tensor lse = memory->output(DType::kF32, std::vector{rows, std::int64_t{1}});
  merge_states(Engine(options), memory->place(o_states), memory->place(lse_states), o, lse);
  const HostTensor got_o = memory->fetch(o);
  const HostTensor got_lse = memory->fetch(lse);

  for (std::int64_t row = 0; row < rows; ++row) {
    double largest = -kInfinity;
    for (std::int64_t s = 0; s < kStates; ++s) {
      largest = std::fmax(largest, lse_states.load(row * kStates + s));
    }
    for (std::int64_t d = 0; d < kDim; ++d) {
      double total = 0;
      double sum = 0;
      double size = 0;
      float total_f32 = 0;  // as the oracle of the same precision sums
      float sum_f32 = 0;
      for (std::int64_t s = 0; s < kStates; ++s) {
        const double weight = std::exp(lse_states.load(row * kStates + s) - largest);
        if (weight == 0) continue;
        const double value = o_states.load((row * kStates + s) * kDim + d);
        total += weight;
        sum += weight * value;
        size += weight * std::fabs(value);
        total_f32 += static_cast<float>(weight);
        sum_f32 += static_cast<float>(weight) * static_cast<float>(value);
      }
      const double exact = sum / total;
      const double lost = std::fabs(static_cast<double>(sum_f32 / total_f32) - exact);
      EXPECT_NEAR(got_o.load(row * kDim + d), exact,
                  2 * lost + 0x1p-24 * std::fabs(exact) + 0x1p-20 * size / total)
          << "row " << row << ", dim " << d;
      if (d > 0) continue;
      const double exact_lse = largest + std::log(total);
      const double lost_lse = std::fabs(std::log(static_cast<double>(total_f32)) - std::log(total));
      EXPECT_NEAR(got_lse.load(row), exact_lse, 2 * lost_lse + 0x1p-21 * std::fabs(exact_lse))
          << "row " << row;
    }
  }
}

class GpuOperations : public testing::Test {
 protected:
  /// Runs an operation on an engine; returns its outputs.
  using Run = std::function<std::vector<HostTensor>(const Engine&, OperandMemory&)>;

  void SetUp() override {
    try {
      make_operand_memory({DeviceKind::kCuda, 0});
    } catch (const Error& error) {
      GTEST_SKIP() << "no CUDA device: " << error.what();
    }
    const test::Seed seed(20261130);
    std::printf("%s\n", seed.repro().c_str());
    random_ = Random(seed.value());
  }

  static std::vector<HostTensor> outputs_on(DeviceKind kind, const Run& run) {
    EngineOptions options;
    options.device = {kind, 0};
    const auto memory = make_operand_memory(options.device);
    return run(Engine(options), *memory);
  }

  static void expect_same(const Run& run, Tolerance tolerance, const std::string& what) {
    const auto expected = outputs_on(DeviceKind::kCpu, run);
    const auto got = outputs_on(DeviceKind::kCuda, run);
    ASSERT_EQ(expected.size(), got.size());
    for (std::size_t t = 0; t < got.size(); ++t) {
      for (std::int64_t i = 0; i < expected[t].size(); ++i) {
        const double a = expected[t].load(i);
        const double b = got[t].load(i);
        const bool same =
            a == b || (std::isnan(a) && std::isnan(b)) ||
            std::fabs(a - b) <= tolerance.relative * std::fabs(a) + tolerance.absolute;
        ASSERT_TRUE(same) << what << ": element " << i << " of output " << t << ": got " << b
                          << ", expected " << a;
      }
    }
  }

  double number(double scale) {
    return scale * (static_cast<double>(random_.integer(-1000, 1000)) / 1000.0);
  }
  HostTensor numbers(DType dtype, std::vector<std::int64_t> shape, double scale = 2.0) {
    HostTensor tensor = HostTensor::zeros(dtype, std::move(shape), "operand");
    tensor.fill([&](const auto&) { return number(scale); });
    return tensor;
  }
  /// Some rows without keys.
  HostTensor lses(std::vector<std::int64_t> shape) {
    HostTensor tensor = HostTensor::zeros(DType::kF32, std::move(shape), "lse");
    tensor.fill([&](const auto&) { return random_.chance(20) ? -kInfinity : number(30.0); });
    return tensor;
  }
  DType dtype() { return random_.pick({DType::kF32, DType::kF16, DType::kBF16}); }
  std::int64_t dim() { return random_.pick<std::int64_t>({8, 24, 64, 100, 128, 576}); }

  Random random_{0};
};

TEST_F(GpuOperations, MergeState) {
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t rows = random_.integer(1, 40);
    const std::int64_t heads = random_.integer(1, 5);
    const std::vector<std::int64_t> shape{rows, heads, dim()};
    const HostTensor a = numbers(dtype(), shape);
    const HostTensor b = numbers(dtype(), shape);
    const HostTensor lse_a = lses({rows, heads});
    const HostTensor lse_b = lses({rows, heads});
    std::vector<std::uint8_t> mask;
    for (std::int64_t r = 0; r < rows; ++r) mask.push_back(random_.chance(70) ? 1 : 0);
    const bool masked = random_.chance(50);
    const DType out = dtype();
    expect_same(
        [&](const Engine& engine, OperandMemory& memory) {
          const Tensor o = memory.output(out, shape);
          const Tensor lse = memory.output(DType::kF32, lse_a.shape);
          merge_state(engine, memory.place(a), memory.place(lse_a), memory.place(b),
                      memory.place(lse_b), o, lse, masked ? memory.place_u8(mask) : Tensor{});
          return std::vector{memory.fetch(o), memory.fetch(lse)};
        },
        tolerance_of(out), "round " + std::to_string(round));
  }
}

TEST_F(GpuOperations, MergeStates) {
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t rows = random_.integer(1, 20);
    const std::int64_t heads = random_.integer(1, 5);
    const std::int64_t states = random_.integer(1, 9);
    const std::int64_t width = dim();
    const HostTensor o_states = numbers(dtype(), {rows, states, heads, width});
    const HostTensor lse_states = lses({rows, states, heads});
    const DType out = dtype();
    expect_same(
        [&](const Engine& engine, OperandMemory& memory) {
          const Tensor o = memory.output(out, std::vector{rows, heads, width});
          const Tensor lse = memory.output(DType::kF32, std::vector{rows, heads});
          merge_states(engine, memory.place(o_states), memory.place(lse_states), o, lse);
          return std::vector{memory.fetch(o), memory.fetch(lse)};
        },
        tolerance_of(out), "round " + std::to_string(round));
  }
}

TEST_F(GpuOperations, ThousandsOfStatesMergeWithinTheErrorBound) {
  expect_many_states_merge(DeviceKind::kCuda);
}
TEST(CpuOperations, ThousandsOfStatesMergeWithinTheErrorBound) {
  expect_many_states_merge(DeviceKind::kCpu);
}

TEST_F(GpuOperations, FinalizeState) {
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t rows = random_.integer(1, 40);
    const std::int64_t heads = random_.integer(1, 5);
    const std::vector<std::int64_t> shape{rows, heads, dim()};
    const HostTensor state = numbers(DType::kF32, shape);
    const HostTensor lse = lses({rows, heads});
    std::vector<double> sinks;
    for (std::int64_t h = 0; h < heads; ++h) {
      sinks.push_back(random_.chance(20) ? -kInfinity : number(30.0));
    }
    const bool sink = random_.chance(70);
    const DType out = dtype();
    expect_same(
        [&](const Engine& engine, OperandMemory& memory) {
          const Tensor o = memory.output(out, shape);
          finalize_state(engine, memory.place(state), memory.place(lse),
                         sink ? memory.place_f32(sinks) : Tensor{}, o);
          return std::vector{memory.fetch(o)};
        },
        tolerance_of(out), "round " + std::to_string(round));
  }
}

TEST_F(GpuOperations, AppendPagedKv) {
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t page = random_.pick<std::int64_t>({1, 3, 16});
    const std::int64_t heads = random_.integer(1, 4);
    const std::int64_t k_dim = dim();
    const std::int64_t v_dim = dim();
    const DType in = dtype();
    const DType cache = random_.pick({in, DType::kF8E4M3, DType::kF8E5M2});
    const KvLayout layout = random_.chance(50) ? KvLayout::kNhd : KvLayout::kHnd;
    const float scale = random_.chance(50) ? 1.0F : 0.37F;
    // Two requests of five and two pages; every slot is written once or never.
    const std::vector<std::int64_t> indptr{0, 5, 7};
    const std::vector<std::int64_t> ids{6, 1, 4, 0, 5, 2, 7};
    std::vector<std::int64_t> requests;
    std::vector<std::int64_t> positions;
    for (std::int64_t r = 0; r < 2; ++r) {
      for (std::int64_t at = 0; at < page * (indptr[static_cast<std::size_t>(r + 1)] -
                                             indptr[static_cast<std::size_t>(r)]);
           ++at) {
        if (random_.chance(50)) continue;
        requests.push_back(random_.chance(10) ? -1 : r);
        positions.push_back(at);
      }
    }
    if (requests.empty()) continue;
    const auto tokens = static_cast<std::int64_t>(requests.size());
    // Rows longer than what is appended: strides that are not the dims.
    const std::int64_t padding = random_.pick<std::int64_t>({0, 1, 8});
    const HostTensor k = numbers(in, {tokens, heads, k_dim + padding}, 500.0);
    const HostTensor v = numbers(in, {tokens, heads, v_dim + padding});
    const auto pool = [&](std::int64_t width) {
      return layout == KvLayout::kNhd ? std::vector<std::int64_t>{8, page, heads, width}
                                      : std::vector<std::int64_t>{8, heads, page, width};
    };
    expect_same(
        [&](const Engine& engine, OperandMemory& memory) {
          const Tensor k_cache = memory.output(cache, pool(k_dim));
          const Tensor v_cache = memory.output(cache, pool(v_dim));
          Tensor k_rows = memory.place(k);
          Tensor v_rows = memory.place(v);
          k_rows.shape[2] = k_dim;
          v_rows.shape[2] = v_dim;
          append_paged_kv(engine, k_rows, v_rows, memory.place_i32(requests),
                          memory.place_i32(positions), memory.place_i32(indptr),
                          memory.place_i32(ids), k_cache, v_cache, layout, scale, scale);
          return std::vector{memory.fetch(k_cache), memory.fetch(v_cache)};
        },
        {0.0, 0.0}, "round " + std::to_string(round));
  }
}

TEST_F(GpuOperations, AppendSkipsTokensThatHaveNoPlace) {
  // The pool has 8 pages of 4 tokens; request 0 has pages 6 and 1, request 1 pages -1 and 8.
  const std::vector<std::int64_t> pool{8, 4, 2, 64};
  const std::vector<std::int64_t> indptr{0, 2, 4};
  const std::vector<std::int64_t> ids{6, 1, -1, 8};
  const std::vector<std::int64_t> requests{0, 1, 1, 0, 0, 2, -7, 0};
  const std::vector<std::int64_t> positions{5, 0, 4, 8, -1, 0, 0, 2};
  const std::vector<std::int64_t> placed{0, -1, -1, -1, -1, -1, -1, 0};
  std::vector<std::int64_t> on_host = positions;
  for (std::size_t t = 0; t < placed.size(); ++t) on_host[t] = placed[t] < 0 ? 0 : positions[t];
  const HostTensor k = numbers(DType::kBF16, {8, 2, 64});
  const HostTensor v = numbers(DType::kBF16, {8, 2, 64});
  expect_same(
      [&](const Engine& engine, OperandMemory& memory) {
        const bool host = engine.options().device.kind == DeviceKind::kCpu;
        const Tensor k_cache = memory.output(DType::kBF16, pool);
        const Tensor v_cache = memory.output(DType::kBF16, pool);
        append_paged_kv(engine, memory.place(k), memory.place(v),
                        memory.place_i32(host ? placed : requests),
                        memory.place_i32(host ? on_host : positions), memory.place_i32(indptr),
                        memory.place_i32(ids), k_cache, v_cache, KvLayout::kNhd, 1.0F, 1.0F);
        return std::vector{memory.fetch(k_cache), memory.fetch(v_cache)};
      },
      {0.0, 0.0}, "tokens out of range");
}

TEST_F(GpuOperations, ApplyRope) {
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t tokens = random_.integer(1, 30);
    const std::vector<std::int64_t> shape{tokens, random_.integer(1, 4), dim()};
    RopeSpec rope;
    rope.kind = random_.chance(50) ? RopeKind::kHalf : RopeKind::kInterleaved;
    rope.rotary_dim = static_cast<std::int32_t>(random_.chance(50) ? shape[2] : shape[2] / 4 * 2);
    std::vector<std::int64_t> positions;
    for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(random_.integer(0, 1 << 20));
    const HostTensor x = numbers(dtype(), shape);
    // Two angles, each good to 1e-4 rad, of vectors of up to 2 sqrt(2).
    Tolerance tolerance = tolerance_of(x.dtype);
    tolerance.absolute = 6e-4 + 2.9 * tolerance.relative;
    expect_same(
        [&](const Engine& engine, OperandMemory& memory) {
          const Tensor out = memory.output(x.dtype, shape);
          apply_rope(engine, memory.place(x), memory.place_i32(positions), rope, out);
          return std::vector{memory.fetch(out)};
        },
        tolerance, "round " + std::to_string(round));
  }
}

}  // namespace
}  // namespace plait::check
