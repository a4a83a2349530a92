// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/jit/kernel_cache.h"
#include "plait/attention.h"
#include "plait/bench/attention_case.h"
#include "plait/bench/cuda_timer.h"
#include "plait/bench/known_buffer.h"

namespace plait::bench {

struct CudaCaseOptions {
  int device = 0;
  std::string family = "auto";
  bool shuffled_pages = true;
  std::int32_t shared_prefix = 0;  // tokens that all requests read before their own
};

/// A problem on the device with its own pool of exactly the tokens it reads, random bf16 values,
/// planned, run once and found right in sampled rows.
class CudaCase {
 public:
  /// Throws Error{kInternal} if a sampled row of the output differs from exact attention.
  CudaCase(CudaTimer& timer, const AttentionSpec& spec, std::vector<CaseRequest> requests,
           const CudaCaseOptions& options);

  void run() { attention_->run(args_); }
  /// Reads as many bytes as K and V hold, once, and does nothing else; `evict_first`: asks the L2
  /// to give its lines up first.
  void plain_read(bool evict_first);
  /// Plans the same batch again and uploads it.
  void plan();

  /// Of K and V, a shared prefix counted once.
  double kv_bytes() const noexcept { return kv_bytes_; }
  /// Multiplications and additions of both products over the visible keys.
  double flops() const noexcept { return flops_; }
  Attention& attention() noexcept { return *attention_; }
  const Engine& engine() const noexcept { return *engine_; }
  const AttentionSpec& spec() const noexcept { return spec_; }
  const Capacity& capacity() const noexcept { return capacity_; }
  const Batch& batch() const noexcept { return arrays_.batch; }
  const RunArgs& args() const noexcept { return args_; }

 private:
  void count_work();
  void fill_operands(bool shuffled_pages);
  void check_rows();
  std::vector<double> expected_row(std::size_t request, std::int64_t position, int head) const;

  CudaTimer& timer_;
  AttentionSpec spec_;
  std::vector<CaseRequest> requests_;
  std::int32_t shared_prefix_;
  BatchArrays arrays_;
  Capacity capacity_;
  double kv_bytes_ = 0;
  double flops_ = 0;
  KnownBuffer pool_, queries_;    // all of K, then all of V
  std::int64_t first_value_ = 0;  // element of the pool where V begins
  cuda::DeviceBuffer output_, page_ids_, slopes_;
  std::vector<std::int32_t> host_page_ids_;
  std::vector<float> host_slopes_;
  std::vector<Tensor> page_id_tensors_;  // one per view
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Attention> attention_;
  std::shared_ptr<const cuda::LoadedKernel> probe_;
  RunArgs args_;
};

}  // namespace plait::bench
