// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/thread_pool.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <system_error>

#if defined(__linux__)
#include <sched.h>
#endif

#include "core/environment.h"
#include "plait/error.h"

namespace plait::cpu {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kSpins = 2000;  // of some tens of cycles each: below 50 us

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int available_cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int checked_count(const char* field, const std::string& text, long value) {
  if (value < 1 || value > kMaxThreads) {
    throw Error(ErrorCode::kInvalidArgument, field, text,
                "a number of threads in [1, " + std::to_string(kMaxThreads) + "]");
  }
  return static_cast<int>(value);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  threads_.reserve(static_cast<std::size_t>(num_threads - 1));
  try {
    for (int t = 1; t < num_threads; ++t) threads_.emplace_back([this, t] { serve(t); });
  } catch (const std::system_error& error) {
    // Destroying threads that nobody joined would end the process.
    stop();
    throw Error(ErrorCode::kBackend, "num_threads", std::to_string(num_threads),
                "as many threads as the system starts (" + std::string(error.what()) + ")");
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::serve(int thread) {
  std::uint64_t seen = 0;
  for (;;) {
    for (int i = 0; i < kSpins && epoch_.load(std::memory_order_acquire) == seen; ++i) relax();
    if (epoch_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return epoch_.load(std::memory_order_acquire) != seen; });
    }
    // A new epoch starts only after every thread finished the last one, so none is missed.
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    task_(context_, thread);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      const std::lock_guard lock(mutex_);
      done_.notify_one();
    }
  }
}

void ThreadPool::run(void (*task)(void*, int), void* context) {
  const std::lock_guard turn(run_mutex_);
  if (threads_.empty()) {
    task(context, 0);
    return;
  }
  task_ = task;
  context_ = context;
  pending_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    epoch_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  task(context, 0);
  for (int i = 0; i < kSpins && pending_.load(std::memory_order_acquire) != 0; ++i) relax();
  if (pending_.load(std::memory_order_acquire) != 0) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return pending_.load(std::memory_order_acquire) == 0; });
  }
}

std::shared_ptr<ThreadPool> ThreadPool::shared(int num_threads) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<ThreadPool>> pools;
  const std::lock_guard lock(mutex);
  std::shared_ptr<ThreadPool> pool = pools[num_threads].lock();
  if (!pool) {
    pool = std::make_shared<ThreadPool>(num_threads);
    pools[num_threads] = pool;
  }
  return pool;
}

int thread_count(int requested) {
  if (requested != 0) {
    return checked_count("num_threads", std::to_string(requested), requested);
  }
  const std::string text = environment("PLAIT_NUM_THREADS");
  if (text.empty()) return std::min(available_cores(), kMaxThreads);
  long value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || rest != end) value = 0;
  return checked_count("PLAIT_NUM_THREADS", text, value);
}

}  // namespace plait::cpu
