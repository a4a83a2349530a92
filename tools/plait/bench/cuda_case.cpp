// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#if PLAIT_WITH_CUDA
#include "plait/bench/cuda_case.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "plan/fit_capacity.h"

namespace plait::bench {
namespace {

using cuda::ContextScope;
using cuda::CuDevicePtr;
using cuda::DeviceBuffer;
using cuda::Driver;

// Well above the L2 of any device.
constexpr std::int64_t kFlushBytes = std::int64_t{512} << 20;
constexpr std::int64_t kElement = 2;  // bf16

/// Fills a buffer with normal bf16 values. A few megabytes are drawn and repeated: what matters is
/// that bits toggle, and drawing gigabytes on the host takes minutes.
void fill_normal(const CudaTimer& timer, const DeviceBuffer& buffer, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const std::int64_t drawn = std::min<std::int64_t>(buffer.bytes(), std::int64_t{8} << 20);
  std::vector<std::uint16_t> words(static_cast<std::size_t>(drawn / kElement));
  for (std::uint16_t& word : words) {
    const float value = normal(random);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    word = static_cast<std::uint16_t>(bits >> 16);
  }
  const Driver& driver = timer.context()->driver();
  const ContextScope scope(*timer.context());
  driver.check(driver.memcpy_host_to_device(buffer.address(), words.data(), words.size() * kElement,
                                            timer.stream()),
               "cuMemcpyHtoDAsync");
  for (std::int64_t done = drawn; done < buffer.bytes(); done *= 2) {
    const std::int64_t more = std::min(done, buffer.bytes() - done);
    driver.check(driver.memcpy_device_to_device(buffer.address() + static_cast<CuDevicePtr>(done),
                                                buffer.address(), static_cast<std::size_t>(more),
                                                timer.stream()),
                 "cuMemcpyDtoDAsync");
  }
  timer.synchronize();
}

double visible_pairs(const AttentionSpec& spec, const CaseRequest& request) {
  if (spec.mask == MaskKind::kNone) return static_cast<double>(request.qo_len) * request.kv_len;
  double pairs = 0;
  for (std::int64_t row = 0; row < request.qo_len; ++row) {
    pairs +=
        static_cast<double>(std::max<std::int64_t>(0, request.kv_len - request.qo_len + row + 1));
  }
  return pairs;
}

}  // namespace

CudaTimer::CudaTimer(std::shared_ptr<cuda::DeviceContext> context)
    : context_(std::move(context)), flush_(context_, kFlushBytes, "flush buffer") {
  const ContextScope scope(*context_);
  const Driver& driver = context_->driver();
  driver.check(driver.stream_create(&stream_, cuda::kCuStreamNonBlocking), "cuStreamCreate");
  driver.check(driver.event_create(&begin_, 0), "cuEventCreate");
  driver.check(driver.event_create(&end_, 0), "cuEventCreate");
}

CudaTimer::~CudaTimer() {
  const Driver& driver = context_->driver();
  const ContextScope scope(*context_);
  driver.stream_synchronize(stream_);
  driver.event_destroy(begin_);
  driver.event_destroy(end_);
  driver.stream_destroy(stream_);
}

void CudaTimer::synchronize() const {
  context_->driver().check(context_->driver().stream_synchronize(stream_), "cuStreamSynchronize");
}

void CudaTimer::begin() {
  const ContextScope scope(*context_);
  const Driver& driver = context_->driver();
  // The flush takes a tenth of a millisecond and more: time enough to enqueue the work behind it.
  driver.check(
      driver.memset_d8(flush_.address(), 1, static_cast<std::size_t>(flush_.bytes()), stream_),
      "cuMemsetD8Async");
  driver.check(driver.event_record(begin_, stream_), "cuEventRecord");
}

double CudaTimer::end() {
  const ContextScope scope(*context_);
  const Driver& driver = context_->driver();
  driver.check(driver.event_record(end_, stream_), "cuEventRecord");
  synchronize();
  float milliseconds = 0;
  driver.check(driver.event_elapsed_time(&milliseconds, begin_, end_), "cuEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}

CudaCase::CudaCase(CudaTimer& timer, const AttentionSpec& spec, std::vector<CaseRequest> requests,
                   const CudaCaseOptions& options)
    : timer_(timer), spec_(spec), batch_(requests, spec.page_size) {
  for (const CaseRequest& request : requests) {
    kv_bytes_ += static_cast<double>(request.kv_len) * spec.num_kv_heads *
                 (spec.head_dim_qk + spec.head_dim_vo) * static_cast<double>(kElement);
    flops_ += 2.0 * visible_pairs(spec, request) * spec.num_qo_heads *
              (spec.head_dim_qk + spec.head_dim_vo);
  }
  if (spec.kv_kind == KvKind::kRagged) {
    // The page list counts tokens there; the lists of BatchArrays are of pages of one token.
    batch_.view.last_page_len = {};
  }
  EngineOptions engine_options;
  engine_options.device = {DeviceKind::kCuda, options.device};
  engine_options.family = options.family;
  engine_ = std::make_unique<Engine>(engine_options);
  capacity_ = fit_capacity({&spec_, 1}, {&batch_.batch, 1}, {});
  attention_ = std::make_unique<Attention>(*engine_, std::vector<AttentionSpec>{spec_}, capacity_,
                                           Attention::Options{});
  fill_operands(options.shuffled_pages);
  probe_ = cuda::KernelCache::process().loaded(timer_.context(),
                                               cuda::parse_kernel_key("common read_probe"));
  plan();
}

void CudaCase::fill_operands(bool shuffled_pages) {
  const std::shared_ptr<cuda::DeviceContext>& context = timer_.context();
  const Device device{DeviceKind::kCuda, context->facts().ordinal};
  const std::int64_t units = batch_.page_indptr.back();  // pages, or tokens if ragged
  const std::int64_t slots = spec_.kv_kind == KvKind::kRagged ? 1 : spec_.page_size;
  const std::int64_t k_elements = units * slots * spec_.num_kv_heads * spec_.head_dim_qk;
  const std::int64_t v_elements = units * slots * spec_.num_kv_heads * spec_.head_dim_vo;
  const std::int64_t rows = batch_.qo_indptr.back();
  pool_ = DeviceBuffer(context, (k_elements + v_elements) * kElement, "K and V");
  queries_ = DeviceBuffer(context, rows * spec_.num_qo_heads * spec_.head_dim_qk * kElement, "q");
  output_ = DeviceBuffer(context, rows * spec_.num_qo_heads * spec_.head_dim_vo * kElement, "o");
  fill_normal(timer_, pool_, 1);
  fill_normal(timer_, queries_, 2);

  const auto at = [](const DeviceBuffer& buffer, std::int64_t element) {
    return reinterpret_cast<const void*>(buffer.address() +
                                         static_cast<CuDevicePtr>(element * kElement));
  };
  args_.q = Tensor::contiguous(at(queries_, 0), DType::kBF16,
                               {rows, spec_.num_qo_heads, spec_.head_dim_qk}, device);
  args_.o = Tensor::contiguous(at(output_, 0), DType::kBF16,
                               {rows, spec_.num_qo_heads, spec_.head_dim_vo}, device);
  args_.stream.handle = timer_.stream();
  if (spec_.kv_kind == KvKind::kRagged) {
    args_.k = Tensor::contiguous(at(pool_, 0), DType::kBF16,
                                 {units, spec_.num_kv_heads, spec_.head_dim_qk}, device);
    args_.v = Tensor::contiguous(at(pool_, k_elements), DType::kBF16,
                                 {units, spec_.num_kv_heads, spec_.head_dim_vo}, device);
    return;
  }
  args_.k = Tensor::contiguous(at(pool_, 0), DType::kBF16,
                               {units, slots, spec_.num_kv_heads, spec_.head_dim_qk}, device);
  args_.v = Tensor::contiguous(at(pool_, k_elements), DType::kBF16,
                               {units, slots, spec_.num_kv_heads, spec_.head_dim_vo}, device);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(units));
  std::iota(ids.begin(), ids.end(), 0);
  if (shuffled_pages) std::shuffle(ids.begin(), ids.end(), std::mt19937_64(3));
  page_ids_ = DeviceBuffer(context, units * 4, "page ids");
  const ContextScope scope(*context);
  const Driver& driver = context->driver();
  driver.check(driver.memcpy_host_to_device(page_ids_.address(), ids.data(), ids.size() * 4,
                                            timer_.stream()),
               "cuMemcpyHtoDAsync");
  timer_.synchronize();
  page_ids_tensor_ = Tensor::contiguous(reinterpret_cast<const void*>(page_ids_.address()),
                                        DType::kI32, {units}, device);
  args_.page_ids = {&page_ids_tensor_, 1};
}

void CudaCase::plan() { attention_->plan(batch_.batch, Stream{timer_.stream()}); }

void CudaCase::plain_read() {
  CuDevicePtr data = pool_.address();
  long long count = pool_.bytes() / 16;
  // Written only if the xor of all words hits one value; the output is a good place for it.
  CuDevicePtr sink = output_.address();
  void* arguments[] = {&data, &count, &sink};
  const cuda::DeviceFacts& facts = timer_.context()->facts();
  const ContextScope scope(*timer_.context());
  launch(*probe_, {static_cast<unsigned>(facts.sm_count * probe_->blocks_per_sm()), 1, 1},
         arguments, timer_.stream());
}

}  // namespace plait::bench
#endif  // PLAIT_WITH_CUDA
