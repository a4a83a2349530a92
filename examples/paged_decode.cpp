// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// One decode step over a paged cache: three requests of 5, 0 and 3 keys, with pages scattered over
// a pool that the caller owns. With q = 0 attention is the plain mean of the visible values, and
// v[j] = j makes the right answers easy to see: 2, 0 (no key at all) and 1.
#include <plait/plait.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

constexpr std::int32_t kQoHeads = 8;
constexpr std::int32_t kKvHeads = 2;
constexpr std::int32_t kDim = 64;
constexpr std::int32_t kPageSize = 4;
constexpr std::int32_t kPoolPages = 8;
constexpr std::array<std::int32_t, 3> kKvLens = {5, 0, 3};

// The value of every element of a row [heads * dim], or NaN if they differ.
float common_value(const std::vector<float>& data, std::size_t row, std::size_t width) {
  for (std::size_t i = 1; i < width; ++i) {
    if (data[row * width + i] != data[row * width]) return std::nanf("");
  }
  return data[row * width];
}

int run_example() {
  plait::AttentionSpec spec;
  spec.num_qo_heads = kQoHeads;
  spec.num_kv_heads = kKvHeads;
  spec.head_dim_qk = spec.head_dim_vo = kDim;
  spec.q_dtype = spec.kv_dtype = spec.o_dtype = plait::DType::kF32;
  spec.page_size = kPageSize;

  plait::Capacity capacity;
  capacity.max_requests = 16;
  capacity.max_query_rows = 16;
  capacity.max_kv_tokens = 1024;

  const plait::Engine engine;
  plait::Attention attention(engine, {spec}, capacity, {});

  // Once per step: lengths and page counts, no page ids.
  const std::array<std::int32_t, 4> qo_indptr = {0, 1, 2, 3};
  const std::array<std::int32_t, 4> page_indptr = {0, 2, 2, 3};
  const std::array<std::int32_t, 3> last_page_len = {1, 0, 3};
  plait::View view;
  view.row_indptr = qo_indptr;
  view.page_indptr = page_indptr;
  view.last_page_len = last_page_len;
  plait::Batch batch;
  batch.qo_indptr = qo_indptr;
  batch.views = {&view, 1};
  attention.plan(batch);

  // Once per layer: tensors and page ids.
  constexpr std::size_t kTokenWidth = static_cast<std::size_t>(kKvHeads) * kDim;
  const std::array<std::int32_t, 3> page_ids = {5, 1, 7};
  std::vector<float> k(kPoolPages * kPageSize * kTokenWidth, 1.0F);
  std::vector<float> v(k.size(), std::nanf(""));  // what is not a key must not matter
  for (std::size_t request = 0; request < kKvLens.size(); ++request) {
    for (std::int32_t j = 0; j < kKvLens[request]; ++j) {
      const std::int32_t page =
          page_ids[static_cast<std::size_t>(page_indptr[request] + j / kPageSize)];
      const auto token = static_cast<std::size_t>(page * kPageSize + j % kPageSize);
      for (std::size_t i = 0; i < kTokenWidth; ++i)
        v[token * kTokenWidth + i] = static_cast<float>(j);
    }
  }
  constexpr std::size_t kRowWidth = static_cast<std::size_t>(kQoHeads) * kDim;
  const std::vector<float> q(3 * kRowWidth, 0.0F);
  std::vector<float> o(q.size(), std::nanf(""));
  std::vector<float> lse(std::size_t{3} * kQoHeads, std::nanf(""));

  using plait::Tensor;
  const auto f32 = plait::DType::kF32;
  const std::array<Tensor, 1> ids = {
      Tensor::contiguous(page_ids.data(), plait::DType::kI32, {std::int64_t{3}})};
  plait::RunArgs args;
  args.q = Tensor::contiguous(q.data(), f32, {3, kQoHeads, kDim});
  args.k = Tensor::contiguous(k.data(), f32, {kPoolPages, kPageSize, kKvHeads, kDim});
  args.v = Tensor::contiguous(v.data(), f32, {kPoolPages, kPageSize, kKvHeads, kDim});
  args.page_ids = ids;
  args.o = Tensor::contiguous(o.data(), f32, {3, kQoHeads, kDim});
  args.lse = Tensor::contiguous(lse.data(), f32, {3, kQoHeads});
  attention.run(args);

  constexpr std::array<float, 3> kExpected = {2.0F, 0.0F, 1.0F};
  int wrong = 0;
  for (std::size_t request = 0; request < 3; ++request) {
    const float mean = common_value(o, request, kRowWidth);
    const double count = std::exp(static_cast<double>(lse[request * kQoHeads]));
    std::printf("request %zu: mean of v = %g over exp(lse) = %g keys\n", request,
                static_cast<double>(mean), count);
    if (!(std::abs(mean - kExpected[request]) < 1e-5F) ||
        !(std::abs(count - kKvLens[request]) < 1e-4)) {
      ++wrong;
    }
  }
  std::printf("family: %s\n", attention.family().c_str());
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run_example();
  } catch (const plait::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
