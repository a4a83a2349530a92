// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "serve/replay.h"
#include "serve/summary.h"

namespace plait::serve {

/// SVG drawings of the HTML report.
std::vector<std::string> plots_of_run(const ReplayResult& result, const Summary& summary,
                                      const ReplayOptions& options);
std::string plot_break_even(const ReplayResult& result, const Summary& summary);
std::string plot_ablations(const Summary& summary);

}  // namespace plait::serve
