// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/planner_memory.h"

#include <algorithm>
#include <string>

#include "plait/error.h"
#include "plan/assign.h"
#include "plan/ledger.h"

namespace plait::planning {

PlannerMemory::PlannerMemory(std::span<const GroupFacts> groups, const Capacity& capacity,
                             const PlanBounds& bounds) {
  GroupBounds most;
  i64 heads = 1;
  for (const GroupFacts& g : groups) {
    most.tiles = std::max(most.tiles, g.bounds.tiles);
    most.requests = std::max(most.requests, g.bounds.requests);
    most.blocks = std::max(most.blocks, g.bounds.blocks);
    most.runs = std::max(most.runs, g.bounds.runs);
    most.items = std::max(most.items, g.bounds.items);
    most.workers = std::max(most.workers, g.bounds.workers);
    heads = std::max<i64>(heads, g.spec->num_kv_heads);
  }
  Ledger ledger;
  const auto blob0 = ledger.add("plan words", bounds.plan_words, 4, 64);
  const auto blob1 = ledger.add("plan words (next)", bounds.plan_words, 4, 64);
  const auto tasks = ledger.add("tasks", most.tiles, sizeof(Task), 64);
  const auto views = ledger.add("tasks per view", heads * (capacity.max_views + 1), 4, 64);
  const auto kv_len = ledger.add("kv_len", most.requests, 4, 64);
  const auto parents = ledger.add("parents", most.blocks, 4, 64);
  const auto cost = ledger.add("run costs", most.runs, 8, 64);
  const auto class_runs = ledger.add("class runs", most.runs, 4, 64);
  const auto order = ledger.add("order", most.runs, 4, 64);
  const auto half_sorted = ledger.add("half sorted", most.runs, 4, 64);
  const auto run_keys = ledger.add("run keys", most.runs, 2, 64);
  const auto worker_keys = ledger.add("worker keys", most.workers, 1, 64);
  const auto lane_cost = ledger.add("costs by lane", most.tiles + device::kMaxClasses, 8, 64);
  const auto lane_task = ledger.add("tasks by lane", most.tiles + device::kMaxClasses, 4, 64);
  const auto team = ledger.add("run teams", most.runs + most.workers, 4, 64);
  const auto cuts = ledger.add("cuts", most.runs + most.workers, 4, 64);
  const auto run_class = ledger.add("run classes", most.runs, 1, 64);
  const auto loads = ledger.add("loads", most.workers, 8, 64);
  const auto workers = ledger.add("workers", most.workers, 4, 64);
  const auto assigned = ledger.add("assignment", most.items, sizeof(Assigned), 64);
  // Untouched pages of a large bound are never committed by the system.
  memory_.reset(std::aligned_alloc(64, static_cast<std::size_t>((ledger.total() + 63) / 64 * 64)));
  if (memory_ == nullptr) {
    throw Error(ErrorCode::kOutOfMemory, "planner memory",
                std::to_string(ledger.total()) + " bytes", "an allocation of that size");
  }
  void* base = memory_.get();
  blobs = {ledger.carve<i32>(base, blob0), ledger.carve<i32>(base, blob1)};
  scratch.tasks = ledger.carve<Task>(base, tasks);
  scratch.view_begin = ledger.carve<i32>(base, views);
  scratch.kv_len = ledger.carve<i32>(base, kv_len);
  scratch.parents = ledger.carve<i32>(base, parents);
  scratch.run_cost = ledger.carve<i64>(base, cost);
  scratch.class_runs = ledger.carve<i32>(base, class_runs);
  scratch.order = ledger.carve<i32>(base, order);
  scratch.half_sorted = ledger.carve<i32>(base, half_sorted);
  scratch.run_keys = ledger.carve<std::uint16_t>(base, run_keys);
  scratch.worker_keys = ledger.carve<std::uint8_t>(base, worker_keys);
  scratch.lane_cost = ledger.carve<i64>(base, lane_cost);
  scratch.lane_task = ledger.carve<i32>(base, lane_task);
  scratch.run_team = ledger.carve<i32>(base, team);
  scratch.cuts = ledger.carve<i32>(base, cuts);
  scratch.run_class = ledger.carve<std::uint8_t>(base, run_class);
  scratch.loads = ledger.carve<i64>(base, loads);
  scratch.workers = ledger.carve<i32>(base, workers);
  scratch.assigned = ledger.carve<Assigned>(base, assigned);
}

}  // namespace plait::planning
