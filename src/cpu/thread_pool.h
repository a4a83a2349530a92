// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace plait::cpu {

/// A fixed set of threads that run the same function together. Waiting threads spin for some
/// microseconds (the next layer is near), then sleep. `run` allocates nothing.
class ThreadPool {
 public:
  using Task = void (*)(void* context, int thread);

  /// `num_threads` counts the caller of `run`, so num_threads - 1 are started. Throws
  /// Error{kBackend} if the system does not start them all.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const noexcept { return static_cast<int>(threads_.size()) + 1; }

  /// Calls task(context, t) for every t in [0, size()), t = 0 on the calling thread, and returns
  /// when all have returned. `task` must not throw. Calls from several threads take turns.
  void run(Task task, void* context);

  /// Calls task(context, 0) on the calling thread and task(context, t) on those others that come
  /// before it returns, and returns when these have returned as well: nobody waits for a thread
  /// that the system has not woken yet. So the caller's call has to do whatever the others leave.
  void share(Task task, void* context);

  /// Whether the other threads spin: they then come in less than a microsecond, else the system has
  /// to wake them.
  bool awake() const noexcept { return sleepers_.load(std::memory_order_relaxed) == 0; }

  /// The pool of this size that the process shares, made at first use, gone with its last user.
  static std::shared_ptr<ThreadPool> shared(int num_threads);

 private:
  void begin(Task task, void* context);
  /// Until `done` of the state.
  template <class Done>
  void wait(const Done& done);
  bool enter(std::uint64_t round);
  void leave();
  void serve(int thread);
  void stop();  // and joins

  std::mutex run_mutex_;  // one run at a time
  std::mutex mutex_;      // guards sleeping; the fields below it are also read while spinning
  std::condition_variable wake_;
  std::condition_variable done_;
  // Number of the round, whether it is closed to those who come late, how many have come and gone,
  // and how many are inside: in one word, so that nobody enters a round that is over.
  std::atomic<std::uint64_t> state_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  Task task_ = nullptr;  // of the round, and its context: read inside only
  void* context_ = nullptr;
  std::vector<std::thread> threads_;
};

/// How many threads to use: `requested` if positive, else PLAIT_NUM_THREADS, else the cores this
/// process may run on. Throws Error{kInvalidArgument} naming the source of a bad number.
int thread_count(int requested);

}  // namespace plait::cpu
