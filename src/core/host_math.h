// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

namespace plait {

/// What the templates of core/device/state.h need, on the host.
struct HostMath {
  static float exp(float x) { return std::exp(x); }
  static float log(float x) { return std::log(x); }
  static double log(double x) { return std::log(x); }
};

}  // namespace plait
