// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The stream kernel against plain arithmetic, for every instruction set of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/convert.h"
#include "cpu/kernel_table.h"

namespace plait::cpu {
namespace {

constexpr unsigned kSeed = 1;
constexpr float kScale = 0.3F;
constexpr int kKeys = 55;  // neither whole blocks nor whole pages
constexpr int kAhead = 9;

struct Shape {
  DType dtype;
  int dim, heads, rows, page_size;
  bool bf16_queries;  // which some kernels multiply as they are
  std::string text() const {
    return std::string(to_string(dtype)) + (bf16_queries ? " by bf16, dim " : " by f32, dim ") +
           std::to_string(dim) + ", " + std::to_string(heads) + " heads of " +
           std::to_string(rows) + " rows, page " + std::to_string(page_size) + ", seed " +
           std::to_string(kSeed);
  }
};

/// One cache of random values, in either layout, pages in reverse order.
struct Cache {
  Cache(const Shape& shape, bool nhd, unsigned seed)
      : row_bytes(shape.dim * size_of(shape.dtype)),
        head_stride(nhd ? row_bytes : shape.page_size * row_bytes) {
    std::mt19937 random(seed);
    const int page_bytes = shape.page_size * shape.heads * row_bytes;
    const int pages = (kKeys + kAhead + shape.page_size - 1) / shape.page_size;
    bytes.resize(static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_bytes));
    for (int key = 0; key < kKeys + kAhead; ++key) {
      const int slot = key % shape.page_size;
      char* row = bytes.data() + (pages - 1 - key / shape.page_size) * page_bytes +
                  slot * (nhd ? shape.heads * row_bytes : row_bytes);
      rows.push_back(row);
      for (int head = 0; head < shape.heads; ++head) {
        for (int i = 0; i < shape.dim; ++i) {
          const double value = static_cast<double>(random() % 2001) / 1000.0 - 1.0;
          store_element(shape.dtype, row + head * head_stride, i, value);
        }
      }
    }
  }
  int row_bytes;
  std::ptrdiff_t head_stride;
  std::vector<char> bytes;
  std::vector<const void*> rows;
};

class CpuStream : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    table_ = kernels_named(GetParam());
    if (table_ == nullptr) GTEST_SKIP() << GetParam() << " is not available here";
  }

  /// Normalised outputs, [heads * rows][dim], and their exact values if asked for. The first
  /// `split` keys are a step of their own.
  std::vector<float> attend(const Shape& shape, bool nhd, int split,
                            std::vector<double>* exact) const {
    const Cache k(shape, nhd, kSeed);
    const Cache v(shape, nhd, kSeed + 1);
    const int rows = shape.heads * shape.rows;
    const int ld = (shape.dim + table_->lanes - 1) / table_->lanes * table_->lanes;
    std::mt19937 random(kSeed + 2);
    std::vector<float> q(static_cast<std::size_t>(kStreamRows * ld));
    std::vector<float> o(q.size());
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < shape.dim; ++i) {
        const float value = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
        q[static_cast<std::size_t>(r * ld + i)] =
            shape.bf16_queries ? bf16_to_f32(f32_to_bf16(value)) : value;
      }
    }
    std::vector<float> s(kStreamBlock * kStreamRows);
    std::vector<float> m(kStreamRows, -std::numeric_limits<float>::infinity());
    std::vector<float> l(kStreamRows, 0.0F);
    const std::vector<float> scale(kStreamRows, kScale);
    StreamStep step;
    step.q = q.data();
    step.q_ld = ld;
    step.num_heads = shape.heads;
    step.num_rows = shape.rows;
    step.k_head_stride = k.head_stride;
    step.v_head_stride = v.head_stride;
    step.head_run = nhd ? 1 : std::min(shape.page_size, kStreamBlock);
    step.dim_qk = step.dim_vo = shape.dim;
    step.scale = scale.data();
    step.s = s.data();
    step.s_ld = (rows + table_->lanes - 1) / table_->lanes * table_->lanes;
    step.o = o.data();
    step.o_ld = ld;
    step.m = m.data();
    step.l = l.data();
    for (const auto& [begin, end] : {std::pair(0, split), std::pair(split, kKeys)}) {
      step.num_keys = end - begin;
      step.num_ahead = kKeys + kAhead - end;
      step.k_rows = k.rows.data() + begin;
      step.v_rows = v.rows.data() + begin;
      if (begin < end) table_->stream_step[static_cast<int>(shape.dtype)](step);
    }

    std::vector<float> result;
    for (int r = 0; r < rows; ++r) {
      const int head = r / shape.rows;
      const auto row = static_cast<std::size_t>(r);
      std::vector<double> sum(static_cast<std::size_t>(shape.dim), 0.0);
      double weights = 0.0;
      for (int key = 0; exact != nullptr && key < kKeys; ++key) {
        const auto at = static_cast<std::size_t>(key);
        double x = 0.0;
        for (int i = 0; i < shape.dim; ++i) {
          x += double{q[row * static_cast<std::size_t>(ld) + static_cast<std::size_t>(i)]} *
               load_element(shape.dtype,
                            static_cast<const char*>(k.rows[at]) + head * k.head_stride, i);
        }
        const double weight = std::exp2(x * double{kScale});
        weights += weight;
        for (int i = 0; i < shape.dim; ++i) {
          sum[static_cast<std::size_t>(i)] +=
              weight * load_element(shape.dtype,
                                    static_cast<const char*>(v.rows[at]) + head * v.head_stride, i);
        }
      }
      for (int i = 0; i < shape.dim; ++i) {
        result.push_back(o[row * static_cast<std::size_t>(ld) + static_cast<std::size_t>(i)] /
                         l[row]);
        if (exact != nullptr) exact->push_back(sum[static_cast<std::size_t>(i)] / weights);
      }
    }
    return result;
  }

  const KernelTable* table_ = nullptr;
};

TEST_P(CpuStream, IsRightAndHasTheSameBitsInBothLayoutsAndInTwoSteps) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
    for (int dim : {128, 64, 80, 20}) {
      for (int heads : {1, 3}) {
        for (int rows : {1, 2, 3, 4, 8}) {
          for (int page_size : {1, 16, 32}) {
            for (bool bf16_queries : {false, true}) {
              if (bf16_queries && dtype != DType::kBF16) continue;
              const Shape shape{dtype, dim, heads, rows, page_size, bf16_queries};
              std::vector<double> exact;
              const std::vector<float> nhd = attend(shape, true, 0, &exact);
              for (std::size_t i = 0; i < nhd.size(); ++i) {
                ASSERT_NEAR(double{nhd[i]}, exact[i], 2e-5) << shape.text() << ", element " << i;
              }
              ASSERT_EQ(nhd, attend(shape, false, 0, nullptr)) << shape.text();
              ASSERT_EQ(nhd, attend(shape, true, kStreamBlock, nullptr)) << shape.text();
            }
          }
        }
      }
    }
  }
}

// Long rows of many heads: lists of what to fetch are refilled at every remainder of keys and
// columns. A sanitizer sees if they are read beyond.
TEST_P(CpuStream, LongRowsHaveTheSameBitsInBothLayouts) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3}) {
    for (int dim = 336; dim <= 512; dim += 12) {
      const Shape shape{dtype, dim, 4 + dim / 4 % 5, 1 + dim / 4 % 2, 16, true};
      const std::vector<float> nhd = attend(shape, true, 0, nullptr);
      ASSERT_EQ(nhd, attend(shape, false, 0, nullptr)) << shape.text();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuStream,
                         testing::Values("sse4", "avx2", "avx512", "avx512_bf16", "neon"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace plait::cpu
