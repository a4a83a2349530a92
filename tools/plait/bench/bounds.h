// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What the machine can do at best, measured in the same process as the cases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cpu/thread_pool.h"

namespace plait::bench {

/// Zeroed memory on huge pages where the system gives them, as a KV pool would lie.
class Memory {
 public:
  explicit Memory(std::size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&&) = delete;
  char* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }

 private:
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Reads all of `memory` with the pool's threads, each a contiguous share, in order.
void plain_read(cpu::ThreadPool& pool, const Memory& a, const Memory& b);

/// Drives everything else out of the caches.
class CacheFlush {
 public:
  CacheFlush();
  void operator()() const;

 private:
  std::shared_ptr<Memory> memory_;
};

/// A square f32 matrix product by OpenBLAS.
class Sgemm {
 public:
  static constexpr int kSize = 2048;
  explicit Sgemm(int threads);
  /// False in a build without OpenBLAS.
  static bool available() noexcept;
  /// For which processor OpenBLAS runs its kernels: the one at hand, unless OPENBLAS_CORETYPE names
  /// another, which makes a weak bound. Empty without OpenBLAS.
  static std::string core();
  void operator()() const;
  static constexpr double kFlops = 2.0 * kSize * kSize * kSize;

 private:
  std::shared_ptr<Memory> a_, b_, c_;
};

}  // namespace plait::bench
