// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Unused slots, page tables, strides, offsets, head counts and dims.
#include <cmath>
#include <limits>

#include "check/compare.h"
#include "check/field/cases.h"
#include "check/transforms.h"
#include "core/convert.h"

namespace plait::check::field {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// A kernel may round probabilities to the type of its products, and so an average of equal values.
constexpr double kRoundingF16 = 0x1p-11;
constexpr double kRoundingBf16 = 0x1p-8;

void nan_in_unused_slots(const FieldRun& run) {
  const Shape shape{{2}, {13}, 4, 2, 64, 64, 4};
  Json document = paged(shape);
  // Two pages that no table lists.
  document["kv"]["k_cache"]["shape"][0] = 6;
  document["kv"]["v_cache"]["shape"][0] = 6;
  const auto with = [&](double value, bool in_k, bool in_v) {
    oracle::Problem problem = run.parse(document);
    for (oracle::HostTensor* pool : {&problem.k, &problem.v}) {
      const double unused = (pool == &problem.k ? in_k : in_v) ? value : 0.0;
      for (std::int64_t slot = 13; slot < 24; ++slot) {
        for (std::int64_t head = 0; head < 2; ++head) {
          for (std::int64_t d = 0; d < 64; ++d) {
            const std::int64_t at[] = {slot / 4, slot % 4, head, d};
            store_element(pool->dtype, pool->storage->data(), pool->at(at), unused);
          }
        }
      }
    }
    return run.run(problem);
  };
  const RunResult zeros = with(0, true, true);
  for (double value : {kNan, kInfinity}) {
    run.expect_same_bits(zeros, with(value, false, true), "in V only");
    run.expect_same_bits(zeros, with(value, true, false), "in K only");
    run.expect_same_bits(zeros, with(value, true, true), "in both");
  }
}

// The live page of a pool that only virtual memory holds, at page `id`.
oracle::Problem at_page(const FieldRun& run, const Json& document, std::int64_t id) {
  oracle::Problem small = run.parse(document);
  oracle::Problem out = small;
  for (auto [from, to] : {std::pair{&small.k, &out.k}, std::pair{&small.v, &out.v}}) {
    std::vector<std::int64_t> shape = from->shape;
    shape[0] = id + 1;
    *to = oracle::HostTensor::zeros(from->dtype, shape, "pool");
    const std::int64_t page = from->size();
    for (std::int64_t n = 0; n < page; ++n) {
      store_element(to->dtype, to->storage->data(), id * page + n, from->load(n));
    }
  }
  out.levels[0].indices[0] = id;
  return out;
}

void offsets_beyond_32_bits(const FieldRun& run) {
  struct Pool {
    Shape shape;
    std::int64_t page;
  };
  // Elements per page times the page id passes 2^31 (and 2^32 for the second): 16 tokens of 8
  // heads of 128, and a latent cache of 32 tokens of 512.
  const Pool pools[] = {
      {{{1}, {16}, 8, 8, 128, 128, 16, "bf16", "f32"}, 131073},
      {{{1}, {32}, 2, 1, 512, 512, 32, "f16", "f32"}, 262144},
  };
  for (const Pool& pool : pools) {
    const Json document = paged(pool.shape);
    const RunResult low = run.run(document);
    oracle::Problem high = at_page(run, document, pool.page);
    run.expect_same_bits(low, run.run(high), "page " + std::to_string(pool.page));
  }
  // The query side: the second row lies 2^31 elements and more behind the first.
  const Json document = paged({{1, 1}, {5, 9}, 2, 1, 64, 64, 4, "bf16", "f32"});
  const oracle::Problem near = run.parse(document);
  oracle::Problem far = near;
  constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 64;
  far.q = oracle::HostTensor::zeros(DType::kBF16, {kStride + 2 * 64}, "q");
  far.q.shape = near.q.shape;
  far.q.strides = {kStride, 64, 1};
  std::int64_t n = 0;
  far.q.fill([&](const auto&) { return near.q.load(n++); });
  run.expect_same_bits(run.run(near), run.run(far), "rows of q 2^31 elements apart");
}

void strides_are_honoured(const FieldRun& run) {
  const Shape shape{{3, 2}, {9, 6}, 4, 2, 64, 64, 4};
  const Json base = paged(shape);
  const RunResult plain = run.run(base);
  const oracle::Problem problem = run.parse(base);
  // Layer 1 of a cache [pages, layers 3, 2, page, heads, dim], K and V interleaved in it.
  oracle::Problem layered = problem;
  const std::int64_t block = 4 * 2 * 64;
  auto storage = oracle::HostTensor::zeros(DType::kF16, {problem.k.shape[0], 3, 2, 4, 2, 64}, "kv");
  storage.fill([](const auto&) { return kNan; });
  for (int which = 0; which < 2; ++which) {
    const oracle::HostTensor& from = which == 0 ? problem.k : problem.v;
    oracle::HostTensor& to = which == 0 ? layered.k : layered.v;
    to = storage;
    to.offset = (2 + which) * block;
    to.shape = from.shape;
    to.strides = {6 * block, 128, 64, 1};
    std::int64_t n = 0;
    to.fill([&](const auto&) { return from.load(n++); });
  }
  // q as a slice of a fused qkv tensor.
  auto fused = oracle::HostTensor::zeros(DType::kF16, {5, 4 + 2 + 2, 64}, "qkv");
  fused.fill([](const auto&) { return kNan; });
  layered.q = fused;
  layered.q.shape = problem.q.shape;
  std::int64_t n = 0;
  layered.q.fill([&](const auto&) { return problem.q.load(n++); });
  run.expect_same_bits(plain, run.run(layered), "layer of a cache, fused qkv");
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    run.expect_same_bits(plain, run.run(with_other_strides(problem, seed)), "padded strides, HND");
  }
}

void page_sizes(const FieldRun& run) {
  for (std::int64_t page : {1, 2, 3, 5, 16, 19, 48, 64, 128, 256, 544}) {
    for (std::int64_t keys : {std::int64_t{1}, page - 1, page, page + 1, 3 * page}) {
      if (keys < 1) continue;
      Json document = paged({{2}, {keys}, 2, 1, 64, 64, page});
      document["mask"] = {{"kind", "causal"}};
      run.run_right(document, "page " + std::to_string(page) + ", kv_len " + std::to_string(keys));
    }
  }
  // The same tokens in the same order through every page size: one set of bits under the policy
  // that promises it.
  Shape shape{{4}, {700}, 2, 1, 64, 64, 1};
  Json document = paged(shape);
  document["plan"] = {{"policy", "batch_invariant"}};
  document["mask"] = {{"kind", "causal"}};
  const oracle::Problem problem = run.parse(document);
  const RunResult base = run.run(problem);
  for (std::int64_t page : {2, 3, 5, 16, 19, 48, 64, 128, 256, 544}) {
    run.expect_same_bits(base, run.run(slice_requests(problem, {{0, 0, 4}}, page)),
                         "page size " + std::to_string(page));
  }
  Json edge = paged({{1}, {20}, 1, 1, 64, 64, 16});
  edge["kv"]["last_page_len"][0] = 0;
  run.expect_refused(edge, "kv.last_page_len[0]");
  edge["kv"]["last_page_len"][0] = 17;
  run.expect_refused(edge, "kv.last_page_len[0]");
}

void large_page(const FieldRun& run) {
  Json document = paged({{1}, {6144}, 32, 2, 256, 256, 256, "bf16", "f32"});
  fill(document["q"], "zeros");
  fill(document["kv"]["v_cache"], {{"index", 1}});  // slot within the page: mean 127.5
  const RunResult result = run.run(document);
  for (std::int64_t head = 0; head < 32; head += 5) {
    run.expect_o(result, 0, head, 127.5, 0.05, "page 256, 6144 keys");
    run.expect_lse(result, 0, head, std::log(6144.0), 1e-5, "page 256, 6144 keys");
  }
}

void group_sizes(const FieldRun& run) {
  for (std::int64_t group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32, 64, 71}) {
    for (std::int64_t rows : {1, 5}) {
      Json document = paged({{rows}, {17}, 2 * group, 2, 128, 128, 16});
      fill(document["kv"]["v_cache"], {{"index", 2}});  // the KV head's own number
      const RunResult result = run.run(document);
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t head = 0; head < 2 * group; ++head) {
          const std::int64_t kv_head = head / group;
          const auto expected = static_cast<double>(kv_head);
          run.expect_o(result, row, head, expected, expected * kRoundingF16,
                       "group " + std::to_string(group));
        }
      }
    }
  }
  Json document = paged({{1}, {17}, 4, 4});
  document["num_qo_heads"] = 6;
  run.expect_refused(document, "num_qo_heads");
}

void head_dims(const FieldRun& run) {
  for (std::int64_t dim :
       {32, 56, 64, 72, 80, 96, 112, 120, 128, 136, 144, 160, 176, 192, 224, 256, 512}) {
    Json document = paged({{16}, {33}, 4, 2, dim, dim, 16});
    document["mask"] = {{"kind", "causal"}};
    run.run_right(document, "head dim " + std::to_string(dim));
  }
  for (std::int64_t dim : {72, 136, 46}) {
    run.run_right(paged({{1, 3}, {33, 20}, 4, 2, dim, dim, 16}), "head dim " + std::to_string(dim));
  }
}

void misaligned_rows(const FieldRun& run) {
  // 46 bf16 elements: rows of 92 bytes, aligned to nothing but their elements.
  Json document = paged({{1, 2}, {6, 3}, 2, 2, 46, 46, 4, "bf16", "f32"});
  for (const char* pool : {"k_cache", "v_cache"}) {
    document["kv"][pool]["stride"] = {4 * 2 * 47, 2 * 47, 47, 1};
    document["kv"][pool]["offset"] = 1;
  }
  run.run_right(document, "rows of 94 bytes from byte 2");
  // Rows of whole vectors in pools that begin 16 bytes, and one element, past an aligned address.
  for (const std::int64_t offset : {8, 1}) {
    Json shifted = paged({{1, 2}, {6, 3}, 2, 2, 128, 128, 4, "bf16", "f32"});
    for (const char* pool : {"k_cache", "v_cache"}) shifted["kv"][pool]["offset"] = offset;
    run.run_right(shifted, "pools from byte " + std::to_string(2 * offset));
  }
}

void different_value_dim(const FieldRun& run) {
  Json document = ragged({std::vector<std::int64_t>(12, 1), std::vector<std::int64_t>(12, 7), 128,
                          128, 192, 128, 16, "bf16", "f32"});
  fill(document["kv"]["v"], {{"index", 1}});  // v = head id
  const RunResult result = run.run(document);
  for (std::int64_t row = 0; row < 12; row += 3) {
    for (std::int64_t head = 0; head < 128; ++head) {
      const auto expected = static_cast<double>(head);
      run.expect_o(result, row, head, expected, expected * kRoundingBf16, "v = head id");
    }
  }
  const oracle::Problem problem = run.parse(document);
  run.expect_near(problem.sm_scale, 0.072168784, 1e-8, "scale of 192");
  run.run_right(ragged({{1, 2}, {7, 9}, 4, 4, 192, 128, 16, "bf16", "bf16"}), "192 and 128");
}

void large_heads(const FieldRun& run) {
  for (std::int64_t dim : {256, 512}) {
    for (std::int64_t rows : {1, 32, 256}) {
      Json document = paged({{rows}, {300}, 2, 1, dim, dim, 16, "bf16", "bf16"});
      document["mask"] = {{"kind", "causal"}};
      run.run_right(document, "dim " + std::to_string(dim) + ", rows " + std::to_string(rows));
    }
  }
  run.run_right(paged({{1}, {70}, 4, 1, 576, 512, 16, "bf16", "bf16"}), "576 and 512");
}

void padding_rows(const FieldRun& run) {
  // Dummy requests of 0 and 1 keys between live ones; page 0 holds NaN and only a dummy lists it.
  Json document = paged({{1, 1, 1, 1}, {9, 0, 1, 6}, 4, 2, 64, 64, 4});
  document["kv"]["indices"] = {4, 1, 2, 0, 3, 5};
  document["kv"]["k_cache"]["shape"][0] = 6;
  document["kv"]["v_cache"]["shape"][0] = 6;
  oracle::Problem problem = run.parse(document);
  const RunResult clean = run.run(problem);
  oracle::Problem poisoned = run.parse(document);
  for (oracle::HostTensor* pool : {&poisoned.k, &poisoned.v}) {
    for (std::int64_t n = 0; n < pool->size() / 6; ++n) {
      store_element(pool->dtype, pool->storage->data(), n, kNan);
    }
  }
  const RunResult dirty = run.run(poisoned);
  for (std::int64_t row : {0, 1, 3}) {
    for (std::int64_t head = 0; head < 4; ++head) {
      for (std::int64_t d = 0; d < 64; ++d) {
        const std::int64_t at = (row * 4 + head) * 64 + d;
        run.expect(clean.o.load(at) == dirty.o.load(at), "a live row is unaffected");
      }
    }
  }
  run.expect(std::isnan(dirty.o.load(2 * 4 * 64)), "the dummy shows what it read");
  document["kv"]["indptr"] = {0, 3, 3, 4, 8};
  run.expect_refused(document, "kv.indices");
}

constexpr FieldCase kCases[] = {
    {6, "nan_in_unused_slots", nan_in_unused_slots},
    {9, "offsets_beyond_32_bits", offsets_beyond_32_bits},
    {11, "strides", strides_are_honoured},
    {12, "page_sizes_and_last_page_len", page_sizes},
    {12, "page_256_with_6144_keys", large_page},
    {13, "group_sizes", group_sizes},
    {14, "head_dims", head_dims},
    {33, "misaligned_rows", misaligned_rows},
    {34, "value_dim_differs", different_value_dim},
    {35, "large_head_dims", large_heads},
    {39, "padding_rows", padding_rows},
};

}  // namespace

std::span<const FieldCase> memory_cases() { return kCases; }

}  // namespace plait::check::field
