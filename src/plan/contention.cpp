// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/contention.h"

#include "plan/workers.h"

namespace plait::planning {

bool lighten_costs(GroupFacts& group, const WholeSize& whole, TaskList& list) {
  if (group.num_classes < 2 || group.target->shared_workers) return false;
  const std::size_t count = static_cast<std::size_t>(group.num_classes);
  std::array<i64, device::kMaxClasses> weights{};
  i32 classes_with_work = 0;
  bool any_headroom = false;
  for (std::size_t c = 0; c < count; ++c) {
    const i32 headroom = group.classes[c].cost.headroom;
    const i64 total = whole.runs.classes[c].total;
    if (total == 0) continue;
    weights[c] = std::max<i64>(1, total / headroom * kNoHeadroom);
    ++classes_with_work;
    any_headroom |= headroom > kNoHeadroom;
  }
  if (classes_with_work < 2 || !any_headroom) return false;
  std::array<i32, device::kMaxClasses> shares{};
  share_workers(group.num_classes, group.num_workers, weights, shares);
  std::array<bool, device::kMaxClasses> changed{};
  bool any = false;
  for (std::size_t c = 0; c < count; ++c) {
    CostModel& cost = group.classes[c].cost;
    if (whole.runs.classes[c].total == 0 || cost.headroom <= kNoHeadroom) continue;
    // A worker's rate rises as the others leave the memory to it, up to what it can read alone.
    const i64 workers = i64{group.num_workers} * kNoHeadroom;
    const i64 busy =
        std::max<i64>(workers * kNoHeadroom / cost.headroom, i64{shares[c]} * kNoHeadroom);
    const i64 token = (cost.per_kv_token * busy + workers - 1) / workers;
    changed[c] = token != cost.per_kv_token;
    any |= changed[c];
    cost.per_kv_token = static_cast<i32>(token);
  }
  if (!any) return false;
  const Task* const end = list.tasks + list.count;
  for (Task* task = list.tasks; task != end;) {
    // As long as the class stays the same; in a local, which what is written cannot change.
    const std::uint8_t tile_class = task->tile_class;
    const bool costs_less = changed[tile_class];
    const TileClass tile = group.classes[tile_class];
    for (; task != end && task->tile_class == tile_class; ++task) {
      if (costs_less) task->cost = item_cost(tile, task->tokens(), 0);
    }
  }
  return true;
}

}  // namespace plait::planning
