// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/contention.h"

#include "plan/workers.h"

namespace plait::planning {

void lighten_costs(GroupFacts& group, TaskList& list) {
  if (group.num_classes < 2 || group.target->shared_workers) return;
  const std::size_t count = static_cast<std::size_t>(group.num_classes);
  std::array<i64, device::kMaxClasses> totals{};
  for (i32 i = 0; i < list.count; ++i) {
    totals[static_cast<std::size_t>(list.tasks[i].tile_class)] += list.tasks[i].cost;
  }
  std::array<i64, device::kMaxClasses> weights{};
  i32 classes_with_work = 0;
  bool any_headroom = false;
  for (std::size_t c = 0; c < count; ++c) {
    const i32 headroom = group.classes[c].cost.headroom;
    weights[c] = totals[c] > 0 ? std::max<i64>(1, totals[c] / headroom * kNoHeadroom) : 0;
    classes_with_work += totals[c] > 0 ? 1 : 0;
    any_headroom |= totals[c] > 0 && headroom > kNoHeadroom;
  }
  if (classes_with_work < 2 || !any_headroom) return;
  std::array<i32, device::kMaxClasses> shares{};
  share_workers(group.num_classes, group.num_workers, weights, shares);
  bool changed = false;
  for (std::size_t c = 0; c < count; ++c) {
    CostModel& cost = group.classes[c].cost;
    if (totals[c] == 0 || cost.headroom <= kNoHeadroom) continue;
    // A worker's rate rises as the others leave the memory to it, up to what it can read alone.
    const i64 workers = i64{group.num_workers} * kNoHeadroom;
    const i64 busy =
        std::max<i64>(workers * kNoHeadroom / cost.headroom, i64{shares[c]} * kNoHeadroom);
    const i64 token = (cost.per_kv_token * busy + workers - 1) / workers;
    changed |= token != cost.per_kv_token;
    cost.per_kv_token = static_cast<i32>(token);
  }
  if (!changed) return;
  for (i32 i = 0; i < list.count; ++i) {
    Task& task = list.tasks[i];
    task.cost =
        item_cost(group.classes[static_cast<std::size_t>(task.tile_class)], task.tokens(), 0);
  }
}

}  // namespace plait::planning
