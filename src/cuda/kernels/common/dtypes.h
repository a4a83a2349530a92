// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/device/portable.h"

namespace plait::device {

/// The values of plait::DType, for code that a run-time compiler sees.
enum class DTypeCode : i32 { kF32 = 0, kF16 = 1, kBF16 = 2, kF8E4M3 = 3, kF8E5M2 = 4 };

}  // namespace plait::device
