// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What stands behind the public objects. Tools reach it through Attention::impl().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/plan_facts.h"
#include "plait/attention.h"
#include "plan/backend.h"
#include "plan/planner.h"

namespace plait::detail {

class EngineImpl {
 public:
  explicit EngineImpl(EngineOptions options);

  const EngineOptions& options() const noexcept { return options_; }
  /// The backends of this device in order of preference, after the family override.
  const std::vector<std::unique_ptr<Backend>>& backends() const noexcept { return backends_; }
  /// The first backend that serves all of `groups`; throws kUnsupported with every reason.
  const Backend& choose(std::span<const AttentionSpec> groups, const Policy& policy) const;
  Operations& operations() const noexcept { return *operations_; }

 private:
  EngineOptions options_;
  std::vector<std::unique_ptr<Backend>> backends_;
  std::unique_ptr<Operations> operations_;
};

class AttentionImpl {
 public:
  AttentionImpl(std::shared_ptr<EngineImpl> engine, std::vector<AttentionSpec> groups,
                const Capacity& capacity, Attention::Options options);

  void plan(std::span<const Batch> batches, Stream stream);
  void run(const RunArgs& args);
  void status(Stream stream) { executor_->status(stream); }

  const std::vector<AttentionSpec>& groups() const noexcept { return groups_; }
  const std::vector<PlanTarget>& targets() const noexcept { return targets_; }
  const Backend& backend() const noexcept { return *backend_; }
  const Planner& planner() const noexcept { return planner_; }
  const Executor& executor() const noexcept { return *executor_; }
  /// One per group, of the plan that runs execute.
  const std::vector<PlanSummary>& summaries() const noexcept { return summaries_; }
  /// What the upload took of the last plan(), host time in nanoseconds.
  std::int64_t upload_ns() const noexcept { return upload_ns_; }

 private:
  std::shared_ptr<EngineImpl> engine_;
  std::vector<AttentionSpec> groups_;
  Capacity capacity_;
  Attention::Options options_;
  const Backend* backend_;
  std::vector<PlanTarget> targets_;
  Planner planner_;
  std::unique_ptr<Executor> executor_;
  std::vector<PlanFacts> facts_;        // one per group, of the uploaded plan
  std::vector<PlanFacts> next_facts_;   // of a plan on its way
  std::vector<PlanSummary> summaries_;  // likewise; empty before the first plan
  bool planned_ = false;
  std::int64_t upload_ns_ = 0;
};

/// `groups`, if their number and each of them is right in itself; throws otherwise.
std::vector<AttentionSpec> checked_groups(std::vector<AttentionSpec> groups);

/// The operations of `engine`'s device, for plait/ops.h.
Operations& operations_of(const Engine& engine) noexcept;

}  // namespace plait::detail
