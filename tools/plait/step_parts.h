// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

namespace plait::tool {

/// Where a step's time goes; the parts sum to `total_ns`.
struct StepParts {
  double floor_ns = 0;      // the work itself, spread evenly over all workers
  double imbalance_ns = 0;  // waiting for the worker that finishes last
  double merge_ns = 0;      // writing and merging partial states
  double launch_ns = 0;     // from the call to the first worker, and back
  double planning_ns = 0;   // plan and upload, when nothing hides them
  double total_ns() const { return floor_ns + imbalance_ns + merge_ns + launch_ns + planning_ns; }
};

struct StepPart {
  const char* name;
  const char* meaning;
  const char* color;
  double ns;
  int tenths;  // of a per cent of the step

  /// Such as "91.2 %".
  std::string share() const;
};

/// The parts with shares that sum to 100.0 % exactly.
std::array<StepPart, 5> parts_of(const StepParts& parts);

}  // namespace plait::tool
