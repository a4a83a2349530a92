// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Speed of family `hopper` through the public API: planner, launch and kernel together, next to the
// plain read of the same bytes in the same process. Event times around one run after an L2 flush.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

#include "cuda/gpu_support.h"
#include "cuda/jit/kernel_cache.h"
#include "plait/attention.h"

namespace plait::cuda {
namespace {

constexpr int kDim = 128;
constexpr int kPageSize = 16;
constexpr std::int64_t kFlushBytes = std::int64_t{256} << 20;

struct Shape {
  const char* name;
  int qo_heads, kv_heads;
  std::vector<int> qo_len, kv_len;
  bool causal;
  bool ragged;
};

class GpuHopperSpeed : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (context_->facts().compute_capability != 90) {
      GTEST_SKIP() << context_->facts().name << " is not of compute capability 9.0";
    }
    flush_ = std::make_unique<DeviceBuffer>(context_, kFlushBytes, "flush");
    stream_ = std::make_unique<TestStream>(context_);
  }

  template <typename Run>
  double median_us(Run&& run) {
    const ContextScope scope(*context_);
    CuEvent begin = nullptr;
    CuEvent end = nullptr;
    driver().check(driver().event_create(&begin, 0), "cuEventCreate");
    driver().check(driver().event_create(&end, 0), "cuEventCreate");
    std::vector<float> times;
    for (int round = 0; round < 17; ++round) {
      driver().check(driver().memset_d8(flush_->address(), static_cast<unsigned char>(round),
                                        kFlushBytes, stream_->get()),
                     "memset");
      driver().check(driver().event_record(begin, stream_->get()), "record");
      run();
      driver().check(driver().event_record(end, stream_->get()), "record");
      stream_->synchronize();
      float ms = 0;
      driver().check(driver().event_elapsed_time(&ms, begin, end), "elapsed");
      if (round >= 2) times.push_back(ms);
    }
    driver().event_destroy(begin);
    driver().event_destroy(end);
    std::sort(times.begin(), times.end());
    return 1e3 * times[times.size() / 2];
  }

  /// Random normal bf16: a block of 8 Mi elements, repeated.
  void fill(const DeviceBuffer& buffer) {
    static const std::vector<std::uint16_t> block = [] {
      std::mt19937 random(3);
      std::normal_distribution<float> normal;
      std::vector<std::uint16_t> values(std::size_t{8} << 20);
      for (auto& x : values) x = bf16_of(normal(random));
      return values;
    }();
    const ContextScope scope(*context_);
    const auto block_bytes = static_cast<std::int64_t>(block.size() * 2);
    for (std::int64_t at = 0; at < buffer.bytes(); at += block_bytes) {
      const auto bytes = static_cast<std::size_t>(std::min(block_bytes, buffer.bytes() - at));
      const CuDevicePtr target = buffer.address() + static_cast<CuDevicePtr>(at);
      driver().check(
          at == 0 ? driver().memcpy_host_to_device(target, block.data(), bytes, nullptr)
                  : driver().memcpy_device_to_device(target, buffer.address(), bytes, nullptr),
          "fill");
    }
    driver().check(driver().context_synchronize(), "cuCtxSynchronize");
  }

  double read_us(CuDevicePtr data, std::int64_t bytes) {
    const auto kernel =
        KernelCache::process().loaded(context_, parse_kernel_key("common read_probe"));
    DeviceArray<std::uint32_t> sink(context_, 1);
    CuDevicePtr target = sink.address();
    long long count = bytes / 16;
    void* arguments[] = {&data, &count, &target};
    const auto grid = static_cast<unsigned>(context_->facts().sm_count * kernel->blocks_per_sm());
    return median_us([&] { launch(*kernel, {grid, 1, 1}, arguments, stream_->get()); });
  }

  struct Result {
    double us = 0, read_us = 0, bytes = 0, flops = 0;
  };
  Result measure(const Shape& shape) {
    AttentionSpec spec;
    spec.num_qo_heads = shape.qo_heads;
    spec.num_kv_heads = shape.kv_heads;
    spec.head_dim_qk = spec.head_dim_vo = kDim;
    spec.page_size = shape.ragged ? 1 : kPageSize;
    spec.kv_kind = shape.ragged ? KvKind::kRagged : KvKind::kPaged;
    spec.mask = shape.causal ? MaskKind::kCausal : MaskKind::kNone;

    std::vector<std::int32_t> qo_indptr{0}, page_indptr{0}, last;
    Result result;
    for (std::size_t r = 0; r < shape.qo_len.size(); ++r) {
      const int n = shape.kv_len[r];
      qo_indptr.push_back(qo_indptr.back() + shape.qo_len[r]);
      page_indptr.push_back(page_indptr.back() + (n + spec.page_size - 1) / spec.page_size);
      last.push_back((n - 1) % spec.page_size + 1);
      result.bytes += 4.0 * n * shape.kv_heads * kDim;
      result.flops +=
          4.0 * shape.qo_len[r] * n * shape.qo_heads * kDim * (shape.causal ? 0.5 : 1.0);
    }
    const int pages = page_indptr.back();
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(11);
    std::shuffle(order.begin(), order.end(), random);
    DeviceArray<std::int32_t> ids(context_, order.size());
    ids.host = order;
    ids.upload();

    const std::int64_t total_q = qo_indptr.back();
    const std::int64_t pool_bytes =
        std::int64_t{pages} * spec.page_size * shape.kv_heads * kDim * 2;
    const std::int64_t q_bytes = total_q * shape.qo_heads * kDim * 2;
    const DeviceBuffer pools(context_, 2 * pool_bytes, "pools");
    const DeviceBuffer q(context_, q_bytes, "q");
    const DeviceBuffer o(context_, q_bytes, "o");
    fill(pools);
    fill(q);

    View view;
    view.row_indptr = qo_indptr;
    view.page_indptr = page_indptr;
    if (!shape.ragged) view.last_page_len = last;
    Batch batch;
    batch.qo_indptr = qo_indptr;
    batch.views = {&view, 1};
    Capacity capacity;
    capacity.max_requests = static_cast<std::int64_t>(shape.qo_len.size());
    capacity.max_query_rows = total_q;
    capacity.max_kv_tokens = *std::max_element(shape.kv_len.begin(), shape.kv_len.end());
    EngineOptions engine_options;
    engine_options.device = {DeviceKind::kCuda, 0};
    engine_options.family = "hopper";
    const Engine engine(engine_options);
    Attention attention(engine, {spec}, capacity, {});
    const Stream stream{stream_->get()};
    attention.plan(batch, stream);

    const Device device{DeviceKind::kCuda, 0};
    const auto tensor = [&](CuDevicePtr address, std::initializer_list<std::int64_t> extents) {
      return Tensor::contiguous(reinterpret_cast<const void*>(address), DType::kBF16, extents,
                                device);
    };
    const CuDevicePtr v_address = pools.address() + static_cast<CuDevicePtr>(pool_bytes);
    const Tensor id_tensor = Tensor::contiguous(ids.device(), DType::kI32, {pages}, device);
    RunArgs args;
    args.q = tensor(q.address(), {total_q, shape.qo_heads, kDim});
    args.o = tensor(o.address(), {total_q, shape.qo_heads, kDim});
    if (shape.ragged) {
      args.k = tensor(pools.address(), {pages, shape.kv_heads, kDim});
      args.v = tensor(v_address, {pages, shape.kv_heads, kDim});
    } else {
      args.k = tensor(pools.address(), {pages, kPageSize, shape.kv_heads, kDim});
      args.v = tensor(v_address, {pages, kPageSize, shape.kv_heads, kDim});
      args.page_ids = {&id_tensor, 1};
    }
    args.stream = stream;
    result.us = median_us([&] { attention.run(args); });
    attention.status(stream);
    result.read_us = read_us(pools.address(), 2 * pool_bytes);
    const PlanSummary plan = attention.summary(0);
    std::printf(
        "%-28s %8.1f us  read %8.1f us (%5.1f %%)  %6.1f TFLOP/s  items %lld states %lld "
        "largest/mean load %.3f\n",
        shape.name, result.us, result.read_us, 100 * result.read_us / result.us,
        result.flops / result.us * 1e-6, static_cast<long long>(plan.num_items),
        static_cast<long long>(plan.num_partial_states),
        static_cast<double>(plan.largest_load) /
            static_cast<double>(std::max<std::int64_t>(plan.mean_load, 1)));
    return result;
  }

  static Shape decode(const char* name, int batch, int kv, int qo_heads, int kv_heads) {
    return {name,
            qo_heads,
            kv_heads,
            std::vector<int>(static_cast<std::size_t>(batch), 1),
            std::vector<int>(static_cast<std::size_t>(batch), kv),
            true,
            false};
  }
  static Shape prefill(const char* name, int batch, int len, int kv_heads, bool causal,
                       bool ragged) {
    const std::vector<int> lens(static_cast<std::size_t>(batch), len);
    return {name, 32, kv_heads, lens, lens, causal, ragged};
  }

  std::unique_ptr<DeviceBuffer> flush_;
  std::unique_ptr<TestStream> stream_;
};

TEST_F(GpuHopperSpeed, SlowDecode) {
  measure(decode("1 x 8192, 32/8", 1, 8192, 32, 8));
  measure(decode("64 x 512, 32/8", 64, 512, 32, 8));
  measure(decode("64 x 2048, 32/8", 64, 2048, 32, 8));
  for (const Shape& shape :
       {decode("64 x 8192, 32/8", 64, 8192, 32, 8), decode("64 x 8192, 64/8", 64, 8192, 64, 8),
        decode("256 x 8192, 32/8", 256, 8192, 32, 8)}) {
    const Result r = measure(shape);
    EXPECT_GT(r.read_us / r.us, 0.90) << shape.name;
  }
  Shape skewed{"64 skewed, 32/8", 32, 8, std::vector<int>(64, 1), {}, true, false};
  std::mt19937 random(11);
  std::lognormal_distribution<double> length(std::log(2600.0), 1.05);
  for (int i = 0; i < 64; ++i) {
    skewed.kv_len.push_back(std::clamp(static_cast<int>(length(random)), 128, 32768));
  }
  Result r = measure(skewed);
  EXPECT_GT(r.read_us / r.us, 0.80);
  skewed.qo_heads = 64;
  skewed.name = "64 skewed, 64/8";
  r = measure(skewed);
  EXPECT_GT(r.read_us / r.us, 0.80);
}

TEST_F(GpuHopperSpeed, SlowPrefill) {
  measure(prefill("16 x 512 ragged causal", 16, 512, 8, true, true));
  measure(prefill("4 x 2048 ragged causal", 4, 2048, 8, true, true));
  measure(prefill("4 x 2048 page 16 causal", 4, 2048, 8, true, false));
  const Result ragged = measure(prefill("1 x 8192 ragged full", 1, 8192, 32, false, true));
  EXPECT_GT(ragged.flops / ragged.us * 1e-6, 400.0);
  const Result paged = measure(prefill("1 x 8192 page 16 full", 1, 8192, 32, false, false));
  EXPECT_GT(paged.flops / paged.us * 1e-6, 400.0);
  measure(prefill("1 x 8192 page 16 causal", 1, 8192, 8, true, false));
}

}  // namespace
}  // namespace plait::cuda
