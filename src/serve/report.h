// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "serve/replay.h"
#include "serve/summary.h"

namespace plait::serve {

/// The table for the terminal.
std::string report_table(const ReplayResult& result, const Summary& summary,
                         const ReplayOptions& options);

/// Everything as JSON: options, totals, distributions with intervals, comparisons, and the steps
/// as columns (every k-th step if there are more than 65536; "every" says k).
std::string report_json(const ReplayResult& result, const Summary& summary,
                        const ReplayOptions& options);

/// One self-contained page with plots; no scripts, no requests.
std::string report_html(const ReplayResult& result, const Summary& summary,
                        const ReplayOptions& options);

/// "trace mooncake.jsonl, 40 requests" and the like, one line each: what was run.
std::vector<std::pair<std::string, std::string>> describe_run(const ReplayResult& result,
                                                              const ReplayOptions& options);

/// A number for people: three or four significant digits, thousands as 12.3k, 4.1M.
std::string human(double value);
/// With a unit that scales: us -> ms -> s, bytes -> KiB ...
std::string human(double value, const std::string& unit);
std::string human(const Estimate& estimate, const std::string& unit);

}  // namespace plait::serve
