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

// The parts of a pool's state.
constexpr std::uint64_t kInside = 1;  // counts up to kMaxThreads
constexpr std::uint64_t kGone = 1 << 12;
constexpr std::uint64_t kClosed = 1 << 24;
constexpr std::uint64_t kRound = std::uint64_t{1} << 32;

std::uint64_t round_of(std::uint64_t state) { return state / kRound; }
std::uint64_t inside(std::uint64_t state) { return state % kGone; }
std::uint64_t gone(std::uint64_t state) { return state % kClosed / kGone; }

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
  stop_.store(true, std::memory_order_relaxed);
  begin(nullptr, nullptr);
  for (std::thread& thread : threads_) thread.join();
}

/// Opens the next round.
void ThreadPool::begin(Task task, void* context) {
  task_ = task;
  context_ = context;
  {
    const std::lock_guard lock(mutex_);
    const std::uint64_t round = round_of(state_.load(std::memory_order_relaxed));
    state_.store((round + 1) * kRound, std::memory_order_release);
  }
  wake_.notify_all();
}

template <class Done>
void ThreadPool::wait(const Done& done) {
  const auto now = [&] { return done(state_.load(std::memory_order_acquire)); };
  for (int i = 0; i < kSpins && !now(); ++i) relax();
  if (now()) return;
  std::unique_lock lock(mutex_);
  done_.wait(lock, now);
}

/// False if that round is over.
bool ThreadPool::enter(std::uint64_t round) {
  std::uint64_t state = state_.load(std::memory_order_relaxed);
  do {
    if (round_of(state) != round || (state & kClosed) != 0) return false;
  } while (!state_.compare_exchange_weak(state, state + kInside, std::memory_order_acquire,
                                         std::memory_order_relaxed));
  return true;
}

void ThreadPool::leave() {
  const std::uint64_t before = state_.fetch_add(kGone - kInside, std::memory_order_acq_rel);
  if (inside(before) == 1) {
    const std::lock_guard lock(mutex_);
    done_.notify_one();
  }
}

void ThreadPool::serve(int thread) {
  std::uint64_t seen = 0;
  const auto next = [&] { return round_of(state_.load(std::memory_order_acquire)) != seen; };
  for (;;) {
    for (int i = 0; i < kSpins && !next(); ++i) relax();
    if (!next()) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_relaxed);
      wake_.wait(lock, next);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    seen = round_of(state_.load(std::memory_order_acquire));
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!enter(seen)) continue;
    task_(context_, thread);
    leave();
  }
}

void ThreadPool::run(Task task, void* context) {
  const std::lock_guard turn(run_mutex_);
  if (!threads_.empty()) begin(task, context);
  task(context, 0);
  const std::uint64_t others = threads_.size();
  wait([others](std::uint64_t state) { return gone(state) == others; });
}

void ThreadPool::share(Task task, void* context) {
  const std::lock_guard turn(run_mutex_);
  if (!threads_.empty()) begin(task, context);
  task(context, 0);
  state_.fetch_or(kClosed, std::memory_order_acq_rel);
  wait([](std::uint64_t state) { return inside(state) == 0; });
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
