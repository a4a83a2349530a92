// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// How the host reads a plan's blob. Nothing is checked: plans come from the planner.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device/plan_layout.h"
#include "plan/planner.h"

namespace plait {

/// The array of `T` that begins `offset` words into the blob.
template <class T>
const T* array_at(const Plan& plan, std::int64_t offset) {
  return reinterpret_cast<const T*>(plan.words.data() + offset);
}

inline const device::GroupHeader& group_header(const Plan& plan, std::size_t group) {
  const std::int64_t offset = device::group_header_offset(static_cast<std::int32_t>(group));
  return *array_at<device::GroupHeader>(plan, offset);
}

}  // namespace plait
