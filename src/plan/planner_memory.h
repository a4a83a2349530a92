// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// All memory of a planner: one allocation, sized by what any plan within the capacity needs.
#pragma once

#include <array>
#include <cstdlib>
#include <memory>
#include <span>

#include "plan/blob.h"
#include "plan/task.h"

namespace plait::planning {

class PlannerMemory {
  struct Free {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;

 public:
  PlannerMemory(std::span<const GroupFacts> groups, const Capacity& capacity,
                const PlanBounds& bounds);

  std::array<i32*, 2> blobs{};  // of the current plan and the next one
  Scratch scratch;
};

}  // namespace plait::planning
