// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/arm.h"

#include <algorithm>

#include "engine/attention_impl.h"
#include "plan/picture.h"
#include "plan/reference_target.h"

namespace plait::serve {
namespace {

std::vector<AttentionSpec> arm_groups(const ArmSpec& arm, const Geometry& geometry,
                                      const ReplayOptions& options) {
  auto groups = attention_specs(geometry, options.scheduler.page_size, options.kv_dtype,
                                arm.fused_rope && options.rope != RopeMode::kNone);
  if (arm.contiguous) {
    for (AttentionSpec& spec : groups) {
      spec.kv_kind = KvKind::kRagged;
      spec.page_size = 1;
    }
  }
  return groups;
}

}  // namespace

Arm::Arm(const ArmSpec& arm, const Engine* engine, const Geometry& geometry,
         const ReplayOptions& options, std::int64_t longest)
    : spec(arm),
      groups(arm_groups(arm, geometry, options)),
      checked_(options.checked),
      composed_(groups.size(), false) {
  const Capacity capacity = make_capacity(options, longest, arm.compose);
  if (engine != nullptr) {
    attention.emplace(*engine, groups, capacity,
                      Attention::Options{.policy = arm.policy,
                                         .checked = options.checked,
                                         .measure = measures_workers(options)});
    return;
  }
  for (const AttentionSpec& group : groups) targets_.push_back(reference_target(group));
  planner_.emplace(groups, capacity, arm.policy, targets_);
}

void Arm::plan(const Batch& flat, const Batch* composed) {
  batches_.clear();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const bool compose = composed != nullptr && spec.compose && groups[g].window_left < 0;
    composed_[g] = compose;
    batches_.push_back(compose ? *composed : flat);
  }
  if (attention) {
    attention->plan(batches_);
    return;
  }
  const Plan& plan = planner_->plan(batches_);
  if (checked_) verify_plan(groups, batches_, plan, planner_->bounds());
}

const Plan& Arm::current() const {
  return attention ? attention->impl().planner().current() : planner_->current();
}

std::span<const PlanTarget> Arm::targets() const {
  return attention ? attention->impl().targets() : std::span<const PlanTarget>(targets_);
}

std::int32_t Arm::num_workers() const { return summary(0).num_workers; }

double Arm::predicted_ns(const Geometry& geometry) const {
  double total = 0.0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    total += static_cast<double>(geometry.groups[g].layers) *
             static_cast<double>(summary(g).largest_load);
  }
  return total / kCostUnitsPerNs;
}

double Arm::mean_load_ns(const Geometry& geometry) const {
  double total = 0.0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    total +=
        static_cast<double>(geometry.groups[g].layers) * static_cast<double>(summary(g).mean_load);
  }
  return total / kCostUnitsPerNs;
}

double Arm::planned_kv_bytes(const Geometry& geometry) const {
  double total = 0.0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const AttentionSpec& group = groups[g];
    const double token_bytes = size_of(group.kv_dtype) * (group.head_dim_qk + group.head_dim_vo);
    total += geometry.groups[g].layers * token_bytes *
             static_cast<double>(planned_kv_tokens(current(), g));
  }
  return total;
}

double Arm::upload_us() const {
  return attention ? static_cast<double>(attention->impl().upload_ns()) / 1e3 : 0.0;
}

std::int64_t Arm::metadata_bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    bytes += summary(g).metadata_bytes;
  }
  return bytes;
}

std::int64_t Arm::workspace_bytes() const {
  // Every group keeps its part of the plan; runs of one object follow each other and use the same
  // memory for partial states.
  std::int64_t states = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    states = std::max(states, summary(g).workspace_bytes - summary(g).metadata_bytes);
  }
  return metadata_bytes() + states;
}

}  // namespace plait::serve
