// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A variant of one's own, as source text: logits get a temperature per query head, and a key is
// visible only if its distance to the query is even. With q = 0 every visible key weighs the same,
// so the output is the mean of the even-distanced values, and lse counts them.
#include <plait/plait.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

// The documented example of docs/variants.md.
constexpr const char* kSource = R"(
struct EvenOnly : plait::device::VariantBase {
  static constexpr bool kHasLogits = true;
  static constexpr bool kHasMask = true;

  template <class T>
  PLAIT_HD static T logits(T s, const plait::device::LogitSite<T>& at, const Params& p) {
    return s * p.temperature[at.qo_head] + p.offset;
  }

  template <class T>
  PLAIT_HD static bool visible(const plait::device::LogitSite<T>& at, const Params&) {
    return (at.q_pos - at.kv_pos) % 2 == 0;
  }
};
)";

int run_example() {
  plait::AttentionSpec spec;
  spec.num_qo_heads = 2;
  spec.num_kv_heads = 1;
  spec.head_dim_qk = spec.head_dim_vo = 8;
  spec.q_dtype = spec.kv_dtype = spec.o_dtype = plait::DType::kF32;
  spec.kv_kind = plait::KvKind::kRagged;
  spec.page_size = 1;
  spec.variant.name = "EvenOnly";
  spec.variant.source = kSource;
  spec.variant.params = {{"temperature", true, {0.5F, 2.0F}}, {"offset", false, {1.0F}}};

  plait::Capacity capacity;
  capacity.max_requests = 1;
  capacity.max_query_rows = 16;
  capacity.max_kv_tokens = 16;
  const plait::Engine engine;
  plait::Attention attention(engine, {spec}, capacity, {});  // compiles, or finds it compiled

  constexpr std::int32_t kKeys = 7;
  const std::array<std::int32_t, 2> qo_indptr = {0, 1};
  const std::array<std::int32_t, 2> kv_indptr = {0, kKeys};
  plait::View view;
  view.row_indptr = qo_indptr;
  view.page_indptr = kv_indptr;
  plait::Batch batch;
  batch.qo_indptr = qo_indptr;
  batch.views = {&view, 1};
  attention.plan(batch);

  const std::vector<float> q(2 * 8, 0.0F);
  std::vector<float> k(kKeys * 8, 1.0F);
  std::vector<float> v(kKeys * 8);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / 8);  // v[j] = j
  std::vector<float> o(2 * 8, std::nanf(""));
  std::vector<float> lse(2, std::nanf(""));
  using plait::Tensor;
  const auto f32 = plait::DType::kF32;
  plait::RunArgs args;
  args.q = Tensor::contiguous(q.data(), f32, {1, 2, 8});
  args.k = Tensor::contiguous(k.data(), f32, {kKeys, 1, 8});
  args.v = Tensor::contiguous(v.data(), f32, {kKeys, 1, 8});
  args.o = Tensor::contiguous(o.data(), f32, {1, 2, 8});
  args.lse = Tensor::contiguous(lse.data(), f32, {1, 2});
  attention.run(args);

  // The query stands at position 6: keys 0, 2, 4 and 6 are visible, each with logit 1.
  const double keys = std::exp(static_cast<double>(lse[0]) - 1.0);
  std::printf("mean of v = %g over %g keys\n", static_cast<double>(o[0]), keys);
  return std::abs(o[0] - 3.0F) < 1e-5F && std::abs(keys - 4.0) < 1e-4 ? 0 : 1;
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
