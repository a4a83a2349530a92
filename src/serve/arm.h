// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plait/attention.h"
#include "plan/planner.h"
#include "serve/arm_spec.h"
#include "serve/geometry.h"

namespace plait::serve {

/// The objects of one arm. A replay that only plans has a planner for the reference device instead
/// of an engine's Attention.
struct Arm {
  ArmSpec spec;
  std::vector<AttentionSpec> groups;
  std::optional<Attention> attention;

  /// `engine` is null where nothing runs.
  Arm(const ArmSpec& arm, const Engine* engine, const Geometry& geometry,
      const ReplayOptions& options, std::int64_t longest);

  /// Plans the step; groups with a window get the flat batch when `composed` is given: reading a
  /// prefix together saves nothing once it has left the window.
  void plan(const Batch& flat, const Batch* composed);
  /// Whether the last plan of `group` was made from the composed batch.
  bool is_composed(std::int32_t group) const { return composed_[static_cast<std::size_t>(group)]; }

  /// What the plans are made for, one per group.
  std::span<const PlanTarget> targets() const;
  std::int32_t num_workers() const;

  /// Predicted makespan of all layers, and their mean load, in nanoseconds.
  double predicted_ns(const Geometry& geometry) const;
  double mean_load_ns(const Geometry& geometry) const;
  /// Bytes of K and V that the items of the last plan read, all layers.
  double planned_kv_bytes(const Geometry& geometry) const;
  double upload_us() const;  // 0 where nothing is uploaded
  std::int64_t metadata_bytes() const;
  std::int64_t workspace_bytes() const;

 private:
  const Plan& current() const;
  const PlanSummary& summary(std::size_t group) const { return current().groups[group].totals; }

  std::vector<PlanTarget> targets_;  // of planner_
  std::optional<Planner> planner_;
  bool checked_ = false;
  std::vector<bool> composed_;
  std::vector<Batch> batches_;
};

}  // namespace plait::serve
