// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The runtime on a device: contexts, loading, launching, lifetimes. No attention kernel is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "cuda/gpu_support.h"
#include "cuda/graph_lifetime.h"
#include "cuda/jit/kernel_cache.h"
#include "cuda/operands.h"
#include "cuda/staging_ring.h"
#include "plait/error.h"
#include "support/temporary_directory.h"

namespace plait::cuda {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class GpuRuntime : public GpuTest {
 protected:
  static KernelKey probe_key() { return parse_kernel_key("common read_probe"); }
};

TEST_F(GpuRuntime, FactsArePlausible) {
  const DeviceFacts& facts = context_->facts();
  std::printf("%s: sm %d, %d SMs, %lld MiB, L2 %lld MiB\n", facts.name.c_str(),
              facts.compute_capability, facts.sm_count,
              static_cast<long long>(facts.memory_bytes >> 20),
              static_cast<long long>(facts.l2_bytes >> 20));
  EXPECT_GT(facts.sm_count, 1);
  EXPECT_GT(facts.memory_bytes, std::int64_t{1} << 30);
  EXPECT_GE(facts.shared_bytes_per_block, 99 * 1024);
  EXPECT_GE(facts.shared_bytes_per_sm, facts.shared_bytes_per_block);
  EXPECT_THROW(query_device(driver(), driver().device_count()), Error);
  EXPECT_THROW(query_device(driver(), -1), Error);
}

TEST_F(GpuRuntime, CurrentContextIsUntouched) {
  const auto current = [&] {
    CuContext handle = nullptr;
    driver().check(driver().context_get_current(&handle), "cuCtxGetCurrent");
    return handle;
  };
  const CuContext before = current();
  {
    const DeviceBuffer buffer(context_, 1 << 20, "test");
    const auto kernel = KernelCache::process().loaded(context_, probe_key());
    EXPECT_EQ(current(), before);
  }
  EXPECT_EQ(current(), before);
}

TEST_F(GpuRuntime, ReadProbeReadsAtMemorySpeed) {
  const auto kernel = KernelCache::process().loaded(context_, probe_key());
  const std::int64_t bytes = std::int64_t{1} << 30;
  const DeviceBuffer buffer(context_, bytes, "test");
  DeviceArray<std::uint32_t> sink(context_, 1);
  sink.upload();
  const TestStream stream(context_);
  const ContextScope scope(*context_);
  driver().check(
      driver().memset_d8(buffer.address(), 1, static_cast<std::size_t>(bytes), stream.get()),
      "memset");
  CuDevicePtr data = buffer.address();
  CuDevicePtr target = sink.address();
  long long count = bytes / 16;
  int evict_first = 0;
  void* arguments[] = {&data, &count, &target, &evict_first};
  const unsigned grid = static_cast<unsigned>(context_->facts().sm_count * kernel->blocks_per_sm());
  CuEvent begin = nullptr;
  CuEvent end = nullptr;
  driver().check(driver().event_create(&begin, 0), "cuEventCreate");
  driver().check(driver().event_create(&end, 0), "cuEventCreate");
  std::vector<float> times[2];
  for (int round = 0; round < 24; ++round) {
    evict_first = round % 2;
    driver().check(driver().event_record(begin, stream.get()), "record");
    launch(*kernel, {grid, 1, 1}, arguments, stream.get());
    driver().check(driver().event_record(end, stream.get()), "record");
    stream.synchronize();
    float ms = 0;
    driver().check(driver().event_elapsed_time(&ms, begin, end), "elapsed");
    if (round >= 4) times[evict_first].push_back(ms);
  }
  driver().event_destroy(begin);
  driver().event_destroy(end);
  for (const bool evicts : {false, true}) {
    std::vector<float>& of_policy = times[evicts ? 1 : 0];
    std::sort(of_policy.begin(), of_policy.end());
    const double rate =
        static_cast<double>(bytes) / (of_policy[of_policy.size() / 2] * 1e-3) / 1e12;
    std::printf("plain read of 1 GiB%s: %.3f TB/s\n", evicts ? ", evict first" : "", rate);
    RecordProperty(evicts ? "read_evict_first_terabytes_per_second" : "read_terabytes_per_second",
                   std::to_string(rate));
    EXPECT_GT(rate, 0.2);
  }
}

TEST_F(GpuRuntime, LookUpAndWarmLoadAreQuick) {
  KernelCache& cache = KernelCache::process();
  const KernelKey key = probe_key();
  const auto kernel = cache.loaded(context_, key);
  constexpr int kRounds = 200000;
  std::uint64_t found = 0;
  const auto start = Clock::now();
  for (int round = 0; round < kRounds; ++round) found += cache.find(0, key) != nullptr;
  const double nanoseconds = 1e9 * seconds_since(start) / kRounds;
  EXPECT_EQ(found, static_cast<std::uint64_t>(kRounds));
  std::printf("key to function: %.0f ns\n", nanoseconds);
  EXPECT_LT(nanoseconds, 200.0);

  if (Nvrtc::find() == nullptr) return;
  const test::TemporaryDirectory directory;
  KernelCache(&Nvrtc::get(), driver().version(), SourceSet::embedded(), directory.path("cache"))
      .compiled(key, cache.arch_of(context_->facts()));
  double fastest = 1;
  for (int round = 0; round < 5; ++round) {
    KernelCache fresh(&Nvrtc::get(), driver().version(), SourceSet::embedded(),
                      directory.path("cache"));
    const auto begin = Clock::now();
    const auto loaded = fresh.loaded(context_, key);
    fastest = std::min(fastest, seconds_since(begin));
    EXPECT_EQ(fresh.disk().counters().hits, 1);
  }
  std::printf("warm load from disk to device: %.2f ms\n", 1e3 * fastest);
  EXPECT_LT(fastest, 0.005);
}

TEST_F(GpuRuntime, StagingSlotIsNotReusedBeforeItsCopy) {
  constexpr std::size_t kWords = 1 << 16;
  StagingRing ring(context_, 0, kWords * 4);
  const TestStream stream(context_);
  const ContextScope scope(*context_);
  // More plans than slots, without any other synchronisation: each copy must carry its own words.
  constexpr int kPlans = 5 * StagingRing::kSlots;
  DeviceArray<std::uint32_t> target(context_, kWords * kPlans);
  for (int plan = 0; plan < kPlans; ++plan) {
    auto* words = reinterpret_cast<std::uint32_t*>(ring.acquire(stream.get()));
    std::fill(words, words + kWords, static_cast<std::uint32_t>(plan));
    driver().check(driver().memcpy_host_to_device(
                       target.address() + static_cast<CuDevicePtr>(plan) * kWords * 4, words,
                       kWords * 4, stream.get()),
                   "copy");
    ring.release(stream.get());
  }
  stream.synchronize();
  target.download();
  for (int plan = 0; plan < kPlans; ++plan) {
    const auto begin = target.host.begin() + static_cast<std::ptrdiff_t>(plan) * kWords;
    EXPECT_TRUE(
        std::all_of(begin, begin + kWords,
                    [&](std::uint32_t word) { return word == static_cast<std::uint32_t>(plan); }))
        << "plan " << plan;
  }
}

TEST_F(GpuRuntime, GraphKeepsWhatItUsesAlive) {
  const TestStream stream(context_);
  auto object = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = object;
  CuGraph graph = nullptr;
  CuGraphExec exec = nullptr;
  DeviceArray<std::uint32_t> word(context_, 1);
  {
    const ContextScope scope(*context_);
    driver().check(driver().stream_begin_capture(stream.get(), CuCaptureMode::kThreadLocal),
                   "begin");
    CuCaptureStatus status = CuCaptureStatus::kNone;
    std::uint64_t id = 0;
    CuGraph capturing = nullptr;
    driver().check(
        driver().stream_get_capture_info(stream.get(), &status, &id, &capturing, nullptr, nullptr),
        "info");
    ASSERT_EQ(status, CuCaptureStatus::kActive);
    keep_alive_with_graph(driver(), capturing, std::move(object));
    driver().check(driver().memset_d32(word.address(), 7, 1, stream.get()), "memset");
    driver().check(driver().stream_end_capture(stream.get(), &graph), "end");
    driver().check(driver().graph_instantiate(&exec, graph, 0), "instantiate");
    driver().check(driver().graph_destroy(graph), "destroy");
  }
  release_parked();
  EXPECT_FALSE(watch.expired()) << "the instantiated graph still uses it";
  {
    const ContextScope scope(*context_);
    driver().check(driver().graph_launch(exec, stream.get()), "launch");
    stream.synchronize();
    driver().check(driver().graph_exec_destroy(exec), "destroy");
    driver().check(driver().context_synchronize(), "synchronize");
  }
  // The driver tells on a thread of its own, soon.
  for (int round = 0; round < 200 && !watch.expired(); ++round) {
    release_parked();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(watch.expired());
  word.download();
  EXPECT_EQ(word.host[0], 7u);
}

TEST_F(GpuRuntime, WrongAddressesAreRefusedByName) {
  const DeviceBuffer buffer(context_, 256, "test");
  const auto refusal = [&](const void* address, std::int64_t alignment) -> std::string {
    try {
      check_device_address(*context_, "q", address, alignment);
    } catch (const Error& error) {
      EXPECT_EQ(error.field(), "q");
      return error.value();
    }
    return "accepted";
  };
  const std::vector<char> host(64);
  EXPECT_EQ(refusal(reinterpret_cast<void*>(buffer.address()), 16), "accepted");
  EXPECT_NE(refusal(reinterpret_cast<void*>(buffer.address() + 8), 16), "accepted");
  EXPECT_EQ(refusal(host.data(), 1), "an address in host memory");
}

TEST_F(GpuRuntime, OutOfMemoryIsNamedAndLeaksNothing) {
  const auto free_bytes = [&] {
    const ContextScope scope(*context_);
    std::size_t free = 0;
    std::size_t total = 0;
    driver().check(driver().mem_get_info(&free, &total), "cuMemGetInfo");
    return free;
  };
  const std::size_t before = free_bytes();
  try {
    const DeviceBuffer buffer(context_, std::int64_t{1} << 50, "workspace");
    FAIL() << "a pebibyte was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_EQ(error.field(), "workspace");
  }
  EXPECT_EQ(free_bytes(), before);
}

}  // namespace
}  // namespace plait::cuda
