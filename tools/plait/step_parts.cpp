// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/step_parts.h"

#include <algorithm>
#include <cstddef>

namespace plait::tool {

std::string StepPart::share() const {
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " %";
}

std::array<StepPart, 5> parts_of(const StepParts& p) {
  std::array<StepPart, 5> parts = {{
      {"floor", "the work, spread evenly over all workers", "#3b6fb6", p.floor_ns, 0},
      {"imbalance", "waiting for the last worker", "#c9cdd4", p.imbalance_ns, 0},
      {"merge", "partial states: writing, reading, combining", "#e08a2e", p.merge_ns, 0},
      {"launch", "from the call to the first worker, and back", "#7a7f8a", p.launch_ns, 0},
      {"planning", "plan and upload, if nothing hides them", "#8e5bb5", p.planning_ns, 0},
  }};
  const double total = p.total_ns();
  if (total <= 0) return parts;
  // The largest remainders are rounded up.
  std::array<double, 5> rest{};
  int sum = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double exact = 1000 * parts[i].ns / total;
    parts[i].tenths = static_cast<int>(exact);
    rest[i] = exact - parts[i].tenths;
    sum += parts[i].tenths;
  }
  for (; sum < 1000; ++sum) {
    auto* const largest = std::max_element(rest.begin(), rest.end());
    ++parts[static_cast<std::size_t>(largest - rest.begin())].tenths;
    *largest = -1;
  }
  return parts;
}

}  // namespace plait::tool
