// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/jit/kernel_cache.h"
#include "plait/attention.h"
#include "plait/bench/attention_case.h"
#include "plait/bench/stats.h"

namespace plait::bench {

/// A stream with two events and a buffer larger than any L2: times one call on the device.
class CudaTimer {
 public:
  explicit CudaTimer(std::shared_ptr<cuda::DeviceContext> context);
  ~CudaTimer();
  CudaTimer(const CudaTimer&) = delete;
  CudaTimer& operator=(const CudaTimer&) = delete;

  const std::shared_ptr<cuda::DeviceContext>& context() const noexcept { return context_; }
  cuda::CuStream stream() const noexcept { return stream_; }
  void synchronize() const;

  /// Seconds between events around what `work` enqueues on `stream`, after an L2 flush. The host is
  /// kept ahead of the device, so that launches are not what is measured.
  template <class Work>
  double seconds_of(const Work& work) {
    begin();
    work();
    return end();
  }

 private:
  void begin();
  double end();

  std::shared_ptr<cuda::DeviceContext> context_;
  cuda::DeviceBuffer flush_;
  cuda::CuStream stream_ = nullptr;
  cuda::CuEvent begin_ = nullptr;
  cuda::CuEvent end_ = nullptr;
};

struct CudaCaseOptions {
  int device = 0;
  std::string family = "auto";
  bool shuffled_pages = true;
};

/// A problem on the device with its own pool of exactly the tokens it reads, random bf16 values,
/// planned and ready to run.
class CudaCase {
 public:
  CudaCase(CudaTimer& timer, const AttentionSpec& spec, std::vector<CaseRequest> requests,
           const CudaCaseOptions& options);

  void run() { attention_->run(args_); }
  /// Reads as many bytes as K and V hold, once, and does nothing else.
  void plain_read();
  /// Plans the same batch again and uploads it.
  void plan();

  double kv_bytes() const noexcept { return kv_bytes_; }
  double flops() const noexcept { return flops_; }
  Attention& attention() noexcept { return *attention_; }
  const Engine& engine() const noexcept { return *engine_; }
  const AttentionSpec& spec() const noexcept { return spec_; }
  const Capacity& capacity() const noexcept { return capacity_; }
  const Batch& batch() const noexcept { return batch_.batch; }
  const RunArgs& args() const noexcept { return args_; }

 private:
  void fill_operands(bool shuffled_pages);

  CudaTimer& timer_;
  AttentionSpec spec_;
  BatchArrays batch_;
  Capacity capacity_;
  double kv_bytes_ = 0;
  double flops_ = 0;
  cuda::DeviceBuffer pool_, queries_, output_, page_ids_;
  Tensor page_ids_tensor_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Attention> attention_;
  std::shared_ptr<const cuda::LoadedKernel> probe_;
  RunArgs args_;
};

}  // namespace plait::bench
