// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "plait/step_parts.h"
#include "plan/backend.h"
#include "plan/picture.h"

namespace plait::tool {

struct Drawing {
  std::string title;
  std::string subtitle;
  PlanPicture picture;
  std::vector<WorkerTime> measured;        // empty: predicted only
  std::vector<std::int32_t> measured_row;  // row of the picture of each measured worker
  StepParts parts;
};

/// One row per worker: items as bars on the predicted time axis, the measured time of each worker
/// as a line, partial states and their merges, and the parts of the step.
std::string draw_svg(const Drawing& drawing);

/// The same as one self-contained page: hovering an item names it and shows what it merges with.
std::string draw_html(const Drawing& drawing);

}  // namespace plait::tool
