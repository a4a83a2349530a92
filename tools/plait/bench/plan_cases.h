// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plait/bench/report.h"

namespace plait::bench {

/// Host time of a plan for a GPU-sized target: 32/8 heads, page 16, 264 workers.
void bench_plan(int repetitions, Report& report);

}  // namespace plait::bench
