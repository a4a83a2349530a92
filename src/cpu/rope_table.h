// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernel_table.h"
#include "plait/spec.h"

namespace plait::cpu {

/// Cosines and sines of rotary embedding. Position p = 256 a + b: the angles of 256 a and of b are
/// tabulated from double precision and joined by the addition theorem, so that a table for a
/// million positions stays small and exact to a few ulp of f32.
class RopeTable {
 public:
  /// Positions in [0, positions) are served from the table, others computed on the spot.
  RopeTable(const RopeSpec& spec, std::int32_t head_dim, std::int64_t positions);

  int half() const noexcept { return half_; }

  /// cos, sin: [half()].
  void angles(const KernelTable& kernels, std::int64_t position, float* cos, float* sin) const;

  /// Rotates one row of f32 in place. `scratch`: [2 * half()].
  void rotate(const KernelTable& kernels, std::int64_t position, float* row, float* scratch) const;
  /// Rotates by given angles.
  void rotate_by(const KernelTable& kernels, const float* cos, const float* sin, float* row) const;

 private:
  static constexpr int kFine = 256;

  RopeKind kind_;
  int half_;
  std::int64_t limit_;
  std::vector<double> frequency_;  // radians per position
  std::vector<float> coarse_;      // [limit / kFine][cos, sin][half]
  std::vector<float> fine_;        // [kFine][cos, sin][half]
};

}  // namespace plait::cpu
