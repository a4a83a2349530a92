// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#if PLAIT_WITH_CUDA
#include "plait/bench/cuda_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "core/convert.h"
#include "plait/error.h"
#include "plan/fit_capacity.h"

namespace plait::bench {
namespace {

using cuda::ContextScope;
using cuda::CuDevicePtr;
using cuda::DeviceBuffer;
using cuda::Driver;

constexpr std::uint64_t kCheckSeed = 5;
constexpr int kCheckedRows = 8;
// Relative error (L2 norm) of a row: bf16 operands and probabilities lose some 4e-3.
constexpr double kRowTolerance = 1e-2;

const void* pointer(CuDevicePtr address) { return reinterpret_cast<const void*>(address); }

}  // namespace

CudaCase::CudaCase(CudaTimer& timer, const AttentionSpec& spec, std::vector<CaseRequest> requests,
                   const CudaCaseOptions& options)
    : timer_(timer),
      spec_(spec),
      requests_(std::move(requests)),
      shared_prefix_(options.shared_prefix),
      arrays_(requests_, spec.page_size, shared_prefix_) {
  if (spec.kv_kind == KvKind::kRagged) {
    // The page list counts tokens there, as the lists of BatchArrays do with pages of one token.
    for (View& view : arrays_.views) view.last_page_len = {};
  }
  count_work();
  EngineOptions engine_options;
  engine_options.device = {DeviceKind::kCuda, options.device};
  engine_options.family = options.family;
  engine_ = std::make_unique<Engine>(engine_options);
  capacity_ = fit_capacity({&spec_, 1}, {&arrays_.batch, 1}, {});
  attention_ = std::make_unique<Attention>(*engine_, std::vector<AttentionSpec>{spec_}, capacity_,
                                           Attention::Options{});
  fill_operands(options.shuffled_pages);
  probe_ = cuda::KernelCache::process().loaded(timer_.context(),
                                               cuda::parse_kernel_key("common read_probe"));
  plan();
  check_rows();
}

void CudaCase::count_work() {
  const double dims = spec_.head_dim_qk + spec_.head_dim_vo;
  double tokens = shared_prefix_;
  double pairs = 0;
  for (const CaseRequest& request : requests_) {
    const double rows = request.qo_len;
    const double keys = static_cast<double>(shared_prefix_) + request.kv_len;
    tokens += request.kv_len;
    pairs += rows * keys - (spec_.mask == MaskKind::kCausal ? rows * (rows - 1) / 2 : 0.0);
  }
  kv_bytes_ = tokens * spec_.num_kv_heads * dims * static_cast<double>(KnownBuffer::kElement);
  flops_ = 2.0 * pairs * spec_.num_qo_heads * dims;
}

void CudaCase::fill_operands(bool shuffled_pages) {
  const std::shared_ptr<cuda::DeviceContext>& context = timer_.context();
  const Device device{DeviceKind::kCuda, context->facts().ordinal};
  const bool ragged = spec_.kv_kind == KvKind::kRagged;
  const std::int64_t prefix_units =
      shared_prefix_ > 0 ? arrays_.prefix_page_indptr.back() : std::int64_t{0};
  const std::int64_t units = prefix_units + arrays_.page_indptr.back();  // pages, or tokens
  const std::int64_t slots = units * spec_.page_size;
  const std::int64_t rows = arrays_.qo_indptr.back();
  first_value_ = slots * spec_.num_kv_heads * spec_.head_dim_qk;
  pool_ = KnownBuffer(timer_, first_value_ + slots * spec_.num_kv_heads * spec_.head_dim_vo, 1,
                      "K and V");
  queries_ = KnownBuffer(timer_, rows * spec_.num_qo_heads * spec_.head_dim_qk, 2, "q");
  output_ = DeviceBuffer(
      context, rows * spec_.num_qo_heads * spec_.head_dim_vo * KnownBuffer::kElement, "o");

  const auto cache = [&](CuDevicePtr address, std::int64_t dim) {
    return ragged ? Tensor::contiguous(pointer(address), DType::kBF16,
                                       {units, spec_.num_kv_heads, dim}, device)
                  : Tensor::contiguous(pointer(address), DType::kBF16,
                                       {units, spec_.page_size, spec_.num_kv_heads, dim}, device);
  };
  args_.k = cache(pool_.address(), spec_.head_dim_qk);
  args_.v = cache(pool_.address(first_value_), spec_.head_dim_vo);
  args_.q = Tensor::contiguous(pointer(queries_.address()), DType::kBF16,
                               {rows, spec_.num_qo_heads, spec_.head_dim_qk}, device);
  args_.o = Tensor::contiguous(pointer(output_.address()), DType::kBF16,
                               {rows, spec_.num_qo_heads, spec_.head_dim_vo}, device);
  args_.stream.handle = timer_.stream();
  if (spec_.alibi) {
    for (int head = 0; head < spec_.num_qo_heads; ++head) {
      host_slopes_.push_back(
          std::exp2(-8.0F * static_cast<float>(head + 1) / static_cast<float>(spec_.num_qo_heads)));
    }
    slopes_ = DeviceBuffer(context, spec_.num_qo_heads * std::int64_t{4}, "ALiBi slopes");
    timer_.copy_to_device(slopes_.address(), host_slopes_.data(), host_slopes_.size() * 4);
    args_.alibi_slopes =
        Tensor::contiguous(pointer(slopes_.address()), DType::kF32, {spec_.num_qo_heads}, device);
  }

  host_page_ids_.resize(static_cast<std::size_t>(units));
  std::iota(host_page_ids_.begin(), host_page_ids_.end(), 0);
  if (ragged) return;  // the identity
  if (shuffled_pages) {
    std::shuffle(host_page_ids_.begin(), host_page_ids_.end(), std::mt19937_64(3));
  }
  page_ids_ = DeviceBuffer(context, units * 4, "page ids");
  timer_.copy_to_device(page_ids_.address(), host_page_ids_.data(), host_page_ids_.size() * 4);
  if (prefix_units > 0) {
    page_id_tensors_.push_back(
        Tensor::contiguous(pointer(page_ids_.address()), DType::kI32, {prefix_units}, device));
  }
  page_id_tensors_.push_back(
      Tensor::contiguous(pointer(page_ids_.address() + static_cast<CuDevicePtr>(prefix_units * 4)),
                         DType::kI32, {units - prefix_units}, device));
  args_.page_ids = page_id_tensors_;
}

std::vector<double> CudaCase::expected_row(std::size_t request, std::int64_t row, int head) const {
  const std::int64_t own_begin =
      arrays_.page_indptr[request] +
      (shared_prefix_ > 0 ? std::int64_t{arrays_.prefix_page_indptr.back()} : 0);
  const std::int64_t kv_len = std::int64_t{shared_prefix_} + requests_[request].kv_len;
  const std::int64_t position = kv_len - requests_[request].qo_len + row;
  const std::int64_t query =
      ((arrays_.qo_indptr[request] + row) * spec_.num_qo_heads + head) * spec_.head_dim_qk;
  const int kv_head = head / (spec_.num_qo_heads / spec_.num_kv_heads);
  const auto slot = [&](std::int64_t key) {
    const std::int64_t own = key - shared_prefix_;
    const std::int64_t page = own < 0 ? key / spec_.page_size : own_begin + own / spec_.page_size;
    const std::int64_t offset = (own < 0 ? key : own) % spec_.page_size;
    return (host_page_ids_[static_cast<std::size_t>(page)] * std::int64_t{spec_.page_size} +
            offset) *
               spec_.num_kv_heads +
           kv_head;
  };
  const std::int64_t visible = spec_.mask == MaskKind::kCausal ? position + 1 : kv_len;
  std::vector<double> logits;
  for (std::int64_t key = 0; key < visible; ++key) {
    const std::int64_t k = slot(key) * spec_.head_dim_qk;
    double s = 0;
    for (int d = 0; d < spec_.head_dim_qk; ++d) s += queries_.value(query + d) * pool_.value(k + d);
    s *= effective_sm_scale(spec_);
    if (spec_.logits_soft_cap > 0) {
      s = spec_.logits_soft_cap * std::tanh(s / spec_.logits_soft_cap);
    }
    if (spec_.alibi) {
      s += static_cast<double>(host_slopes_[static_cast<std::size_t>(head)]) *
           static_cast<double>(key - position);
    }
    logits.push_back(s);
  }
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  std::vector<double> output(static_cast<std::size_t>(spec_.head_dim_vo));
  for (std::int64_t key = 0; key < visible; ++key) {
    const double weight = std::exp(logits[static_cast<std::size_t>(key)] - top);
    const std::int64_t v = first_value_ + slot(key) * spec_.head_dim_vo;
    sum += weight;
    for (std::size_t d = 0; d < output.size(); ++d) {
      output[d] += weight * pool_.value(v + static_cast<std::int64_t>(d));
    }
  }
  for (double& x : output) x /= sum;
  return output;
}

void CudaCase::check_rows() {
  {
    const ContextScope scope(*timer_.context());
    const Driver& driver = timer_.context()->driver();
    driver.check(driver.memset_d8(output_.address(), 0xFF,
                                  static_cast<std::size_t>(output_.bytes()), timer_.stream()),
                 "cuMemsetD8Async");
  }
  run();
  timer_.synchronize();
  std::mt19937_64 random(kCheckSeed);
  for (int sample = 0; sample < kCheckedRows; ++sample) {
    const std::size_t request = random() % requests_.size();
    const auto row =
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(requests_[request].qo_len));
    const int head = static_cast<int>(random() % static_cast<std::uint64_t>(spec_.num_qo_heads));
    const std::vector<double> expected = expected_row(request, row, head);
    std::vector<std::uint16_t> words(expected.size());
    const std::int64_t element =
        ((arrays_.qo_indptr[request] + row) * spec_.num_qo_heads + head) * spec_.head_dim_vo;
    timer_.copy_to_host(
        words.data(), output_.address() + static_cast<CuDevicePtr>(element * KnownBuffer::kElement),
        words.size() * 2);
    double error = 0;
    double norm = 0;
    for (std::size_t d = 0; d < words.size(); ++d) {
      const double difference = static_cast<double>(bf16_to_f32(words[d])) - expected[d];
      error += difference * difference;
      norm += expected[d] * expected[d];
    }
    // Written so that a NaN fails.
    if (!(std::sqrt(error) <= kRowTolerance * std::sqrt(norm))) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("output of family {}, request {}, row {}, head {}",
                              attention_->family(), request, row, head),
                  fmt::format("relative error {:.2e}", std::sqrt(error / norm)),
                  fmt::format("at most {:.0e}", kRowTolerance));
    }
  }
}

void CudaCase::plan() { attention_->plan(arrays_.batch, Stream{timer_.stream()}); }

void CudaCase::plain_read(bool evict_first) {
  CuDevicePtr data = pool_.address();
  long long count = pool_.bytes() / 16;
  // Written only if the xor of all words hits one value; the output is a good place for it.
  CuDevicePtr sink = output_.address();
  int evicts_first = evict_first ? 1 : 0;
  void* arguments[] = {&data, &count, &sink, &evicts_first};
  const cuda::DeviceFacts& facts = timer_.context()->facts();
  const ContextScope scope(*timer_.context());
  launch(*probe_, {static_cast<unsigned>(facts.sm_count * probe_->blocks_per_sm()), 1, 1},
         arguments, timer_.stream());
}

}  // namespace plait::bench
#endif  // PLAIT_WITH_CUDA
