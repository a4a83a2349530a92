// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/arm.h"

#include "engine/attention_impl.h"

#include <algorithm>

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

Arm::Arm(const ArmSpec& arm, const Engine& engine, const Geometry& geometry,
         const ReplayOptions& options, std::int64_t longest)
    : spec(arm),
      groups(arm_groups(arm, geometry, options)),
      attention(engine, groups, make_capacity(options, longest, arm.compose),
                {.policy = arm.policy, .checked = false, .measure = measures_workers(options)}),
      composed_(groups.size(), false) {}

void Arm::plan(const Batch& flat, const Batch* composed) {
  batches_.clear();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    composed_[g] = composed != nullptr && spec.compose && groups[g].window_left < 0;
    batches_.push_back(composed_[g] ? *composed : flat);
  }
  attention.plan(batches_);
}

double Arm::predicted_ns(const Geometry& geometry) const {
  double total = 0.0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    total += static_cast<double>(geometry.groups[g].layers) *
             static_cast<double>(attention.summary(static_cast<std::int32_t>(g)).largest_load);
  }
  return total / kCostUnitsPerNs;
}

double Arm::mean_load_ns(const Geometry& geometry) const {
  double total = 0.0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    total += static_cast<double>(geometry.groups[g].layers) *
             static_cast<double>(attention.summary(static_cast<std::int32_t>(g)).mean_load);
  }
  return total / kCostUnitsPerNs;
}

double Arm::upload_us() const { return static_cast<double>(attention.impl().upload_ns()) / 1e3; }

std::int64_t Arm::metadata_bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    bytes += attention.summary(static_cast<std::int32_t>(g)).metadata_bytes;
  }
  return bytes;
}

std::int64_t Arm::workspace_bytes() const {
  // Every group keeps its part of the plan; runs of one object follow each other and use the same
  // memory for partial states.
  std::int64_t states = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const PlanSummary summary = attention.summary(static_cast<std::int32_t>(g));
    states = std::max(states, summary.workspace_bytes - summary.metadata_bytes);
  }
  return metadata_bytes() + states;
}

}  // namespace plait::serve
