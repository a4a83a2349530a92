// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What tests on a device share. Suites that need one are named Gpu*.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device.h"
#include "plait/attention.h"
#include "support/paged_batch.h"

namespace plait::cuda {

/// Skips, saying why, without a driver, a device or a compiler.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    const Driver* driver = Driver::find(&reason);
    if (driver == nullptr) GTEST_SKIP() << "no GPU: " << reason;
    context_ = DeviceContext::get(0);
    if (context_->facts().compute_capability < 80) {
      GTEST_SKIP() << context_->facts().name << " is older than compute capability 8.0";
    }
  }

  const Driver& driver() const { return context_->driver(); }
  /// Whether the device is that of tests/emulator/, which is thousands of times slower.
  bool emulated() const { return context_->facts().name == "Emulated GPU"; }
  void synchronize() const {
    const ContextScope scope(*context_);
    driver().check(driver().context_synchronize(), "cuCtxSynchronize");
  }

  std::shared_ptr<DeviceContext> context_;
};

/// Skips where family `hopper` does not run.
class HopperTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (context_->facts().compute_capability != 90) {
      GTEST_SKIP() << context_->facts().name << " is not of compute capability 9.0";
    }
  }
};

/// An array on the device with its host image.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(std::shared_ptr<DeviceContext> context, std::size_t count)
      : host(count),
        context_(context),
        memory_(std::move(context), static_cast<std::int64_t>(count * sizeof(T)), "test array") {}

  std::vector<T> host;

  T* device() const { return reinterpret_cast<T*>(memory_.address()); }
  CuDevicePtr address() const { return memory_.address(); }

  void upload(CuStream stream = nullptr) {
    const ContextScope scope(*context_);
    const Driver& driver = context_->driver();
    driver.check(driver.memcpy_host_to_device(memory_.address(), host.data(),
                                              host.size() * sizeof(T), stream),
                 "upload");
    driver.check(driver.stream_synchronize(stream), "upload");
  }
  void download(CuStream stream = nullptr) {
    const ContextScope scope(*context_);
    const Driver& driver = context_->driver();
    driver.check(driver.memcpy_device_to_host(host.data(), memory_.address(),
                                              host.size() * sizeof(T), stream),
                 "download");
    driver.check(driver.stream_synchronize(stream), "download");
  }
  /// Every byte becomes `byte`.
  void poison(unsigned char byte, CuStream stream = nullptr) {
    const ContextScope scope(*context_);
    context_->driver().check(
        context_->driver().memset_d8(memory_.address(), byte, host.size() * sizeof(T), stream),
        "poison");
  }

 private:
  std::shared_ptr<DeviceContext> context_;
  DeviceBuffer memory_;
};

/// A stream of the device.
class TestStream {
 public:
  explicit TestStream(std::shared_ptr<DeviceContext> context) : context_(std::move(context)) {
    const ContextScope scope(*context_);
    context_->driver().check(context_->driver().stream_create(&handle_, kCuStreamNonBlocking),
                             "cuStreamCreate");
  }
  ~TestStream() {
    const ContextScope scope(*context_);
    context_->driver().stream_synchronize(handle_);
    context_->driver().stream_destroy(handle_);
  }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;

  CuStream get() const { return handle_; }
  void synchronize() const {
    context_->driver().check(context_->driver().stream_synchronize(handle_), "cuStreamSynchronize");
  }

 private:
  std::shared_ptr<DeviceContext> context_;
  CuStream handle_ = nullptr;
};

/// A bf16 word for a float, rounded toward zero: good enough for inputs.
inline std::uint16_t bf16_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint16_t>(bits >> 16);
}

inline constexpr Device kTestDevice{DeviceKind::kCuda, 0};

inline EngineOptions test_engine(std::string family = "auto") {
  EngineOptions options;
  options.device = kTestDevice;
  options.family = std::move(family);
  return options;
}

/// Causal attention in bf16 over pages.
inline AttentionSpec paged_spec(int qo_heads, int kv_heads, int dim, int page_size) {
  AttentionSpec spec;
  spec.num_qo_heads = qo_heads;
  spec.num_kv_heads = kv_heads;
  spec.head_dim_qk = spec.head_dim_vo = dim;
  spec.page_size = page_size;
  return spec;
}

using test::paged_batch;

/// Pages that a batch of paged_batch lists.
inline std::int64_t listed_pages(const OwnedBatch& batch) {
  return batch.views.front().page_indptr.back();
}

/// The operands of a run of such a batch: whole tensors of bf16, pools of `pool_pages` pages.
class PagedRun {
 public:
  PagedRun(const AttentionSpec& spec, const OwnedBatch& batch, void* q, void* k, void* v,
           std::int64_t pool_pages, std::int32_t* page_ids, void* o, CuStream stream = nullptr,
           Device device = kTestDevice)
      : ids_(Tensor::contiguous(page_ids, DType::kI32, {listed_pages(batch)}, device)) {
    const std::int64_t page = spec.page_size;
    const std::int64_t heads = spec.num_kv_heads;
    const auto rows = [&](void* data) {
      return Tensor::contiguous(data, DType::kBF16,
                                {batch.qo_indptr.back(), spec.num_qo_heads, spec.head_dim_qk},
                                device);
    };
    const auto pool = [&](void* data) {
      return spec.layout == KvLayout::kNhd
                 ? Tensor::contiguous(data, DType::kBF16,
                                      {pool_pages, page, heads, spec.head_dim_qk}, device)
                 : Tensor::contiguous(data, DType::kBF16,
                                      {pool_pages, heads, page, spec.head_dim_qk}, device);
    };
    args_.q = rows(q);
    args_.k = pool(k);
    args_.v = pool(v);
    args_.page_ids = std::span<const Tensor>(&ids_, 1);
    args_.o = rows(o);
    args_.stream.handle = stream;
  }
  PagedRun(const PagedRun&) = delete;
  PagedRun& operator=(const PagedRun&) = delete;

  /// Valid while this object is.
  RunArgs& args() { return args_; }

 private:
  Tensor ids_;
  RunArgs args_;
};

}  // namespace plait::cuda
