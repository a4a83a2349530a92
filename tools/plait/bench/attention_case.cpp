// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/bench/attention_case.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "core/convert.h"
#include "plan/fit_capacity.h"

namespace plait::bench {
namespace {

std::int64_t pages_of(const CaseRequest& request, std::int32_t page_size) {
  return (request.kv_len + page_size - 1) / page_size;
}

std::int64_t pages_of(const std::vector<CaseRequest>& requests, std::int32_t page_size) {
  std::int64_t pages = 0;
  for (const CaseRequest& request : requests) pages += pages_of(request, page_size);
  return pages;
}

std::int64_t rows_of(const std::vector<CaseRequest>& requests) {
  std::int64_t rows = 0;
  for (const CaseRequest& request : requests) rows += request.qo_len;
  return rows;
}

/// Values in [-1, 1), from a multiplicative hash: quick to make, and neither zero nor constant.
void fill(const Memory& memory, DType dtype, std::int64_t count) {
  std::uint32_t state = 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    const float value = static_cast<float>(state >> 8) / 8388608.0F - 1.0F;
    switch (dtype) {
      case DType::kF32: reinterpret_cast<float*>(memory.data())[i] = value; break;
      case DType::kBF16:
        reinterpret_cast<std::uint16_t*>(memory.data())[i] = f32_to_bf16(value);
        break;
      default: store_element(dtype, memory.data(), i, value);
    }
  }
}

std::size_t bytes_of(std::int64_t count, DType dtype) {
  return static_cast<std::size_t>(count * size_of(dtype));
}

double visible_keys(const AttentionSpec& spec, const CaseRequest& request) {
  const double q = request.qo_len;
  const double kv = request.kv_len;
  return spec.mask == MaskKind::kCausal ? q * kv - q * (q - 1) / 2 : q * kv;
}

}  // namespace

BatchArrays::BatchArrays(const std::vector<CaseRequest>& requests, std::int32_t page_size,
                         std::int32_t shared_prefix) {
  for (const CaseRequest& request : requests) {
    qo_indptr.push_back(qo_indptr.back() + request.qo_len);
    page_indptr.push_back(page_indptr.back() +
                          static_cast<std::int32_t>(pages_of(request, page_size)));
    last_page_len.push_back((request.kv_len - 1) % page_size + 1);
  }
  if (shared_prefix > 0) {
    prefix_row_indptr.push_back(qo_indptr.back());
    prefix_page_indptr.push_back(
        static_cast<std::int32_t>(pages_of({0, shared_prefix}, page_size)));
    prefix_last_page_len.push_back((shared_prefix - 1) % page_size + 1);
    View prefix;
    prefix.row_indptr = prefix_row_indptr;
    prefix.page_indptr = prefix_page_indptr;
    prefix.last_page_len = prefix_last_page_len;
    views.push_back(prefix);
  }
  View own;
  own.row_indptr = qo_indptr;
  own.page_indptr = page_indptr;
  own.last_page_len = last_page_len;
  views.push_back(own);
  batch.qo_indptr = qo_indptr;
  batch.views = views;
}

AttentionCase::AttentionCase(const AttentionSpec& spec, std::vector<CaseRequest> requests,
                             const CaseOptions& options)
    : spec_(spec),
      requests_(std::move(requests)),
      num_pages_(pages_of(requests_, spec.page_size)),
      keys_(bytes_of(num_pages_ * spec.page_size * spec.num_kv_heads * spec.head_dim_qk,
                     spec.kv_dtype)),
      values_(bytes_of(num_pages_ * spec.page_size * spec.num_kv_heads * spec.head_dim_vo,
                       spec.kv_dtype)),
      queries_(bytes_of(rows_of(requests_) * spec.num_qo_heads * spec.head_dim_qk, spec.q_dtype)),
      output_(bytes_of(rows_of(requests_) * spec.num_qo_heads * spec.head_dim_vo, spec.o_dtype)) {
  const std::int64_t slots = num_pages_ * spec.page_size * spec.num_kv_heads;
  const std::int64_t rows = rows_of(requests_);
  fill(keys_, spec.kv_dtype, slots * spec.head_dim_qk);
  fill(values_, spec.kv_dtype, slots * spec.head_dim_vo);
  fill(queries_, spec.q_dtype, rows * spec.num_qo_heads * spec.head_dim_qk);
  for (std::int64_t i = 0; i < num_pages_; ++i) page_ids_.push_back(static_cast<std::int32_t>(i));
  if (options.shuffled_pages) {
    std::mt19937 random(1);
    std::shuffle(page_ids_.begin(), page_ids_.end(), random);
  }
  for (const CaseRequest& request : requests_) {
    kv_bytes_ += static_cast<double>(request.kv_len) * spec.num_kv_heads *
                 (spec.head_dim_qk + spec.head_dim_vo) * size_of(spec.kv_dtype);
    flops_ += 2.0 * visible_keys(spec, request) * spec.num_qo_heads *
              (spec.head_dim_qk + spec.head_dim_vo);
  }

  const BatchArrays arrays(requests_, spec.page_size);
  EngineOptions engine;
  engine.num_threads = options.threads;
  engine_ = std::make_unique<Engine>(engine);
  Attention::Options attention;
  attention.policy = options.policy;
  attention_ = std::make_unique<Attention>(
      *engine_, std::vector<AttentionSpec>{spec},
      fit_capacity({&spec_, 1}, {&arrays.batch, 1}, options.policy), attention);
  attention_->plan(arrays.batch);

  const auto cache = [&](const Memory& memory, std::int64_t dim) {
    return spec.layout == KvLayout::kNhd
               ? Tensor::contiguous(memory.data(), spec.kv_dtype,
                                    {num_pages_, spec.page_size, spec.num_kv_heads, dim})
               : Tensor::contiguous(memory.data(), spec.kv_dtype,
                                    {num_pages_, spec.num_kv_heads, spec.page_size, dim});
  };
  args_.q = Tensor::contiguous(queries_.data(), spec.q_dtype,
                               {rows, spec.num_qo_heads, spec.head_dim_qk});
  args_.k = cache(keys_, spec.head_dim_qk);
  args_.v = cache(values_, spec.head_dim_vo);
  args_.o =
      Tensor::contiguous(output_.data(), spec.o_dtype, {rows, spec.num_qo_heads, spec.head_dim_vo});
  page_ids_tensor_ = Tensor::contiguous(page_ids_.data(), DType::kI32, {num_pages_});
  args_.page_ids = {&page_ids_tensor_, 1};
}

namespace {

/// In (0, 1), the same from every standard library.
double uniform_of(std::mt19937_64& random) {
  return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
}

}  // namespace

std::vector<CaseRequest> log_uniform_requests(int count, int longest, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<CaseRequest> requests;
  for (int i = 0; i < count; ++i) {
    const double length = std::exp(uniform_of(random) * std::log(longest + 1.0));
    requests.push_back({1, static_cast<std::int32_t>(std::clamp(length, 1.0, longest * 1.0))});
  }
  return requests;
}

std::vector<CaseRequest> skewed_requests(int count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto uniform = [&random] { return uniform_of(random); };
  std::vector<CaseRequest> requests;
  for (int i = 0; i < count; ++i) {
    // Box-Muller, so that every standard library gives the same lengths.
    const double normal =
        std::sqrt(-2.0 * std::log(uniform())) * std::cos(2.0 * std::numbers::pi * uniform());
    const double length = std::exp(7.5 + 1.2 * normal);
    requests.push_back({1, static_cast<std::int32_t>(std::clamp(length, 128.0, 32768.0))});
  }
  return requests;
}

}  // namespace plait::bench
