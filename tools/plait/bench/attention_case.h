// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plait/attention.h"
#include "plait/bench/bounds.h"

namespace plait::bench {

struct CaseRequest {
  std::int32_t qo_len = 1;
  std::int32_t kv_len = 1;
};

struct CaseOptions {
  int threads = 0;
  bool shuffled_pages = true;  // pages lie anywhere in the pool, as after some time of serving
  Policy policy;
};

/// A paged problem with its own pool of exactly the pages it reads, planned and ready to run.
class AttentionCase {
 public:
  AttentionCase(const AttentionSpec& spec, std::vector<CaseRequest> requests,
                const CaseOptions& options);

  void run() { attention_->run(args_); }

  const Memory& keys() const noexcept { return keys_; }
  const Memory& values() const noexcept { return values_; }
  /// Of K and V that the requests list.
  double kv_bytes() const noexcept { return kv_bytes_; }
  /// Multiplications and additions of both products over the visible keys.
  double flops() const noexcept { return flops_; }
  const Attention& attention() const noexcept { return *attention_; }

 private:
  AttentionSpec spec_;
  std::vector<CaseRequest> requests_;
  std::int64_t num_pages_ = 0;
  double kv_bytes_ = 0;
  double flops_ = 0;
  Memory keys_, values_, queries_, output_;
  std::vector<std::int32_t> page_ids_;
  Tensor page_ids_tensor_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Attention> attention_;
  RunArgs args_;
};

/// Batch of requests as arrays, for planning. With a shared prefix, an outer view of that many
/// tokens spans all rows, and its pages come first; `kv_len` of a request counts its own tokens.
struct BatchArrays {
  explicit BatchArrays(const std::vector<CaseRequest>& requests, std::int32_t page_size,
                       std::int32_t shared_prefix = 0);
  BatchArrays(const BatchArrays&) = delete;
  BatchArrays& operator=(const BatchArrays&) = delete;

  std::vector<std::int32_t> qo_indptr{0}, page_indptr{0}, last_page_len;
  std::vector<std::int32_t> prefix_row_indptr{0}, prefix_page_indptr{0}, prefix_last_page_len;
  std::vector<View> views;
  Batch batch;
};

/// Lengths whose logarithms are uniform in [1, longest], the same for a seed everywhere.
std::vector<CaseRequest> log_uniform_requests(int count, int longest, std::uint64_t seed);
/// Log-normal lengths in [128, 32768], the same for a seed everywhere.
std::vector<CaseRequest> skewed_requests(int count, std::uint64_t seed);

}  // namespace plait::bench
