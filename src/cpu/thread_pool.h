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
  /// `num_threads` counts the caller of `run`, so num_threads - 1 are started. Throws
  /// Error{kBackend} if the system does not start them all.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const noexcept { return static_cast<int>(threads_.size()) + 1; }

  /// Calls task(context, t) for every t in [0, size()), t = 0 on the calling thread, and returns
  /// when all have returned. `task` must not throw. Calls from several threads take turns.
  void run(void (*task)(void* context, int thread), void* context);

  /// The pool of this size that the process shares, made at first use, gone with its last user.
  static std::shared_ptr<ThreadPool> shared(int num_threads);

 private:
  void serve(int thread);
  void stop();  // and joins

  std::mutex run_mutex_;  // one run at a time
  std::mutex mutex_;      // guards sleeping; the fields below it are also read while spinning
  std::condition_variable wake_;
  std::condition_variable done_;
  std::atomic<std::uint64_t> epoch_{0};
  std::atomic<int> pending_{0};
  std::atomic<bool> stop_{false};
  void (*task_)(void*, int) = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> threads_;
};

/// How many threads to use: `requested` if positive, else PLAIT_NUM_THREADS, else the cores this
/// process may run on. Throws Error{kInvalidArgument} naming the source of a bad number.
int thread_count(int requested);

}  // namespace plait::cpu
