// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "cpu/item.h"
#include "cpu/rope_table.h"
#include "cpu/thread_pool.h"
#include "cpu/user_variant.h"
#include "plan/backend.h"

namespace plait::cpu {

class CpuExecutor final : public Executor {
 public:
  explicit CpuExecutor(const ExecutorRequest& request);
  ~CpuExecutor() override;

  static std::int64_t workspace_bytes(const ExecutorRequest& request);

  void upload(const Plan& plan, Stream stream) override;
  void run(const RunArgs& args) override;
  void status(Stream) override {}  // bad page ids are refused before a run
  std::vector<WorkerTime> worker_times(Stream) const override;

 private:
  struct Group {
    AttentionSpec spec;
    std::unique_ptr<RopeTable> rope;
    std::shared_ptr<const UserVariant> variant;
  };

  /// The lists of worker `worker` of class `class_index`.
  void work(const Layer& layer, ItemRunner& runner, int class_index, std::int32_t worker);

  const KernelTable& kernels_;
  std::shared_ptr<ThreadPool> pool_;
  std::vector<Group> groups_;
  PlanBounds bounds_;
  std::uint64_t spec_fingerprint_;
  Allocator allocator_;
  char* workspace_ = nullptr;
  std::int32_t* plan_ = nullptr;
  float* state_o_ = nullptr;
  float* state_lse_ = nullptr;
  std::int32_t* counters_ = nullptr;
  std::vector<ItemRunner> runners_;  // one per thread
  bool measure_ = false;
  std::vector<WorkerTime> times_;
};

}  // namespace plait::cpu
