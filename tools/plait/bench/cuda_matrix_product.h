// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cuda/device.h"
#include "plait/bench/cuda_timer.h"
#include "plait/bench/known_buffer.h"

namespace plait::bench {

/// A square bf16 matrix product by cuBLAS with f32 accumulation: the bound of prefill. cuBLAS is
/// opened at run time, PLAIT_CUBLAS (a file) or libcublas.so.13 or .12 where the loader finds it.
class MatrixProduct {
 public:
  static constexpr int kSize = 8192;
  static constexpr double kFlops = 2.0 * kSize * kSize * kSize;

  explicit MatrixProduct(CudaTimer& timer);
  ~MatrixProduct();
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  /// False where no cuBLAS was found; `reason` says what was tried.
  bool available() const noexcept { return handle_ != nullptr; }
  const std::string& reason() const noexcept { return reason_; }
  /// Enqueues the product on the timer's stream.
  void operator()() const;

 private:
  using Handle = void*;
  CudaTimer& timer_;
  std::string reason_;
  Handle handle_ = nullptr;
  int (*destroy_)(Handle) = nullptr;
  int (*gemm_)(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*,
               int, int, const void*, void*, int, int, int, int) = nullptr;
  KnownBuffer a_, b_;
  cuda::DeviceBuffer c_;
};

}  // namespace plait::bench
