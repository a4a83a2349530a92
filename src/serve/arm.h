// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "plait/attention.h"
#include "serve/arm_spec.h"
#include "serve/geometry.h"

namespace plait::serve {

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
  double upload_us() const;
  std::int64_t metadata_bytes() const;
  std::int64_t workspace_bytes() const;

 private:
  std::vector<bool> composed_;
  std::vector<Batch> batches_;
};

}  // namespace plait::serve
