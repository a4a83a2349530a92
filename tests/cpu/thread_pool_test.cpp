// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "plait/error.h"

namespace plait::cpu {
namespace {

TEST(CpuThreadPool, EveryThreadRunsOnceEachTime) {
  for (int size : {1, 2, 3, 8}) {
    ThreadPool pool(size);
    ASSERT_EQ(pool.size(), size);
    std::vector<int> calls(static_cast<std::size_t>(size), 0);
    for (int round = 1; round <= 200; ++round) {
      pool.run(
          [](void* context, int t) {
            ++(*static_cast<std::vector<int>*>(context))[static_cast<std::size_t>(t)];
          },
          &calls);
      for (int count : calls) ASSERT_EQ(count, round);
    }
  }
}

TEST(CpuThreadPool, WakesSleepersAndWaitsForSlowOnes) {
  ThreadPool pool(3);
  std::atomic<int> done{0};
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // beyond the spinning
    pool.run(
        [](void* context, int t) {
          std::this_thread::sleep_for(std::chrono::milliseconds(3 * t));
          static_cast<std::atomic<int>*>(context)->fetch_add(1);
        },
        &done);
    ASSERT_EQ(done.load(), 3 * (round + 1));
  }
}

TEST(CpuThreadPool, SharedWorkIsDoneOnceByWhoeverComes) {
  struct Job {
    std::atomic<int> next{0};
    std::vector<int> calls;
  };
  for (int size : {1, 2, 3, 8}) {
    ThreadPool pool(size);
    for (int round = 0; round < 300; ++round) {
      Job job;
      job.calls.assign(static_cast<std::size_t>(round), 0);
      pool.share(
          [](void* context, int) {
            Job& j = *static_cast<Job*>(context);
            for (int i; (i = j.next.fetch_add(1)) < static_cast<int>(j.calls.size());) {
              ++j.calls[static_cast<std::size_t>(i)];
            }
          },
          &job);
      ASSERT_EQ(job.calls, std::vector<int>(static_cast<std::size_t>(round), 1));
      // Both kinds of rounds in turn, with threads that come late to the one before.
      std::atomic<int> came{0};
      pool.run([](void* context, int) { static_cast<std::atomic<int>*>(context)->fetch_add(1); },
               &came);
      ASSERT_EQ(came.load(), size);
    }
  }
}

TEST(CpuThreadPool, SleepsSomeTimeAfterARound) {
  ThreadPool pool(2);
  pool.run([](void*, int) {}, nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // beyond the spinning
  EXPECT_FALSE(pool.awake());
}

TEST(CpuThreadPool, SharingWaitsForThoseWhoCame) {
  ThreadPool pool(2);
  struct Job {
    std::atomic<bool> came{false};
    std::atomic<bool> done{false};
  } job;
  pool.share(
      [](void* context, int thread) {
        Job& j = *static_cast<Job*>(context);
        if (thread == 0) {
          while (!j.came.load()) std::this_thread::yield();
        } else {
          j.came = true;
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          j.done = true;
        }
      },
      &job);
  EXPECT_TRUE(job.done.load());
}

TEST(CpuThreadPool, CallersTakeTurns) {
  ThreadPool pool(2);
  int value = 0;  // unguarded on purpose: run() is the guard, on thread 0 only
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        pool.run(
            [](void* context, int t) {
              if (t == 0) ++*static_cast<int*>(context);
            },
            &value);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(value, 200);
}

TEST(CpuThreadPool, SharedBySize) {
  const auto a = ThreadPool::shared(2);
  EXPECT_EQ(a.get(), ThreadPool::shared(2).get());
  EXPECT_NE(a.get(), ThreadPool::shared(3).get());
}

TEST(CpuThreadPool, CountComesFromCallerThenEnvironment) {
  EXPECT_EQ(thread_count(5), 5);
  setenv("PLAIT_NUM_THREADS", "7", 1);
  EXPECT_EQ(thread_count(0), 7);
  EXPECT_EQ(thread_count(2), 2);
  for (const char* bad : {"0", "-1", "three", "2x", "100000"}) {
    setenv("PLAIT_NUM_THREADS", bad, 1);
    try {
      thread_count(0);
      ADD_FAILURE() << bad << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.field(), "PLAIT_NUM_THREADS");
      EXPECT_EQ(error.value(), bad);
    }
  }
  unsetenv("PLAIT_NUM_THREADS");
  EXPECT_GE(thread_count(0), 1);
  EXPECT_THROW(thread_count(-1), Error);
}

}  // namespace
}  // namespace plait::cpu
