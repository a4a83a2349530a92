// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plait/bench/report.h"

namespace plait::bench {

/// Measures, on one thread, the coefficients of the CPU backend's cost model
/// (src/plan/cost_table.cpp) and prints them in the form of its table.
void calibrate(int repetitions, Report& report);

}  // namespace plait::bench
