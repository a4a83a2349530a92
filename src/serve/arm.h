// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The baseline of a replay and its ablations: each arm plans and runs the same steps over the
// same K and V, with exactly one feature changed against its reference.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plait/attention.h"
#include "serve/geometry.h"
#include "serve/replay_options.h"

namespace plait::serve {

struct ArmSpec {
  std::string name;    // "baseline" or what differs from the reference
  std::string change;  // one sentence
  std::optional<Feature> feature;
  std::int32_t reference = 0;  // index of the arm it is compared with
  Policy policy;
  bool compose = true;
  bool contiguous = false;
  bool fused_rope = false;
};

/// Baseline first. Contiguous K/V cannot share a prefix, so where the baseline composes, the
/// reference of `indexed` is the arm without composition (added if it was not asked for).
std::vector<ArmSpec> make_arms(const ReplayOptions& options);

/// Bounds for any step of `options.scheduler` over requests of at most `longest` tokens.
Capacity make_capacity(const ReplayOptions& options, std::int64_t longest, bool compose);

/// The objects of one arm.
struct Arm {
  ArmSpec spec;
  std::vector<AttentionSpec> groups;
  Attention attention;

  Arm(const ArmSpec& arm, const Engine& engine, const Geometry& geometry,
      const ReplayOptions& options, std::int64_t longest);

  /// Plans the step; groups with a window get the flat batch when `composed` is given: reading a
  /// prefix together saves nothing once it has left the window.
  void plan(const Batch& flat, const Batch* composed);
  /// Whether the last plan of `group` was made from the composed batch.
  bool is_composed(std::int32_t group) const { return composed_[static_cast<std::size_t>(group)]; }

  /// Predicted makespan of all layers, and their mean load, in nanoseconds.
  double predicted_ns(const Geometry& geometry) const;
  double mean_load_ns(const Geometry& geometry) const;
  std::int64_t metadata_bytes() const;
  std::int64_t workspace_bytes() const;

 private:
  std::vector<bool> composed_;
  std::vector<Batch> batches_;
};

}  // namespace plait::serve
