// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Several devices in one process, and operands that are not where they should be.
#include <algorithm>
#include <random>
#include <string>

#include "cuda/gpu_support.h"
#include "cuda/jit/kernel_cache.h"
#include "plait/error.h"

namespace plait::cuda {
namespace {

constexpr int kHeads = 8;
constexpr int kKvHeads = 2;
constexpr int kDim = 128;
constexpr int kPageSize = 16;
constexpr int kRows = 20;
constexpr int kPages = 16;

/// An attention object of one device and its operands, the same numbers on each.
class Side {
 public:
  explicit Side(int ordinal)
      : device_{DeviceKind::kCuda, ordinal}, context_(DeviceContext::get(ordinal)) {
    EngineOptions options;
    options.device = device_;
    Capacity capacity;
    capacity.max_requests = 2;
    capacity.max_query_rows = kRows;
    capacity.max_kv_tokens = kPages * kPageSize;
    attention_ = std::make_unique<Attention>(Engine(options), std::vector{spec_}, capacity,
                                             Attention::Options{});
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal;
    for (auto* array : {&q_, &k_, &v_}) {
      for (auto& word : array->host) word = bf16_of(normal(random));
      array->upload();
    }
    for (int page = 0; page < kPages; ++page) ids_.host[static_cast<std::size_t>(page)] = page;
    ids_.upload();
    o_.poison(0xFF);
  }

  void plan(OwnedBatch& batch) { attention_->plan(batch.get()); }

  void run(const OwnedBatch& batch) { run(batch, q_.device()); }
  /// With queries from elsewhere.
  void run(const OwnedBatch& batch, void* q) {
    PagedRun run(spec_, batch, q, k_.device(), v_.device(), kPages, ids_.device(), o_.device(),
                 nullptr, device_);
    attention_->run(run.args());
  }

  const std::vector<std::uint16_t>& output() {
    o_.download();
    return o_.host;
  }
  std::uint16_t* queries() const { return q_.device(); }
  const std::vector<std::uint16_t>& host_queries() const { return q_.host; }

 private:
  const AttentionSpec spec_ = paged_spec(kHeads, kKvHeads, kDim, kPageSize);
  Device device_;
  std::shared_ptr<DeviceContext> context_;
  std::unique_ptr<Attention> attention_;
  DeviceArray<std::uint16_t> q_{context_, std::size_t{kRows} * kHeads* kDim};
  DeviceArray<std::uint16_t> k_{context_, std::size_t{kPages} * kPageSize* kKvHeads* kDim};
  DeviceArray<std::uint16_t> v_{context_, k_.host.size()};
  DeviceArray<std::uint16_t> o_{context_, q_.host.size()};
  DeviceArray<std::int32_t> ids_{context_, kPages};
};

class GpuDevices : public GpuTest {
 protected:
  void expect_refused(Side& side, const OwnedBatch& batch, void* q, const std::string& value) {
    try {
      side.run(batch, q);
      ADD_FAILURE() << "accepted: " << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(error.field(), "q");
      EXPECT_EQ(error.value(), value);
    }
  }

  OwnedBatch first_ = paged_batch({{1, 100}, {19, 50}}, kPageSize);
  OwnedBatch second_ = paged_batch({{17, 17}, {1, 150}}, kPageSize);
};

TEST_F(GpuDevices, TwoInOneProcessDoTheirOwnWork) {
  if (driver().device_count() < 2) GTEST_SKIP() << "one device";
  Side near(0);
  Side far(1);
  const auto current = [&] {
    CuContext handle = nullptr;
    driver().check(driver().context_get_current(&handle), "cuCtxGetCurrent");
    return handle;
  };
  const CuContext before = current();
  near.plan(first_);
  far.plan(second_);
  near.run(first_);
  far.run(second_);
  EXPECT_EQ(current(), before);
  const std::vector<std::uint16_t> first_near = near.output();
  const std::vector<std::uint16_t> second_far = far.output();
  EXPECT_NE(first_near, second_far);
  near.plan(second_);
  far.plan(first_);
  near.run(second_);
  far.run(first_);
  EXPECT_EQ(far.output(), first_near);
  // Rows beyond the second batch keep what the first one wrote.
  const std::ptrdiff_t words = std::ptrdiff_t{18} * kHeads * kDim;
  EXPECT_TRUE(std::equal(second_far.begin(), second_far.begin() + words, near.output().begin()));
  for (const std::uint16_t word : first_near) ASSERT_NE(word & 0x7F80, 0x7F80) << "not finite";

  // Machine code is loaded for each.
  const KernelKey key = parse_kernel_key("common read_probe");
  const auto here = KernelCache::process().loaded(context_, key);
  const auto there = KernelCache::process().loaded(DeviceContext::get(1), key);
  EXPECT_NE(here->function(), there->function());

  expect_refused(near, second_, far.queries(), "memory of cuda:1");
  expect_refused(far, first_, near.queries(), "memory of cuda:0");
}

TEST_F(GpuDevices, AddressesThatDoNotFitAreRefusedBeforeAnythingIsLaunched) {
  Side side(0);
  side.plan(first_);
  std::vector<std::uint16_t> host = side.host_queries();
  expect_refused(side, first_, host.data(), "an address in host memory");
  expect_refused(side, first_, side.queries() + 1, "an address 2 bytes past a multiple of 16");
  for (const std::uint16_t word : side.output()) ASSERT_EQ(word, 0xFFFF);
  EXPECT_NO_THROW(side.run(first_));
}

}  // namespace
}  // namespace plait::cuda
