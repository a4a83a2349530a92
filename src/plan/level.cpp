// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/level.h"

namespace plait::planning {
namespace {

/// Teams of one set of workers and how far they are filled.
struct Lane {
  i32 teams = 0;
  i64 level = 0;
  i32 team = 0;
  i64 load = 0;
  i64 largest_load = 0;
  i64 largest_item = 0;
  i64 items = 0;
  std::array<i64, device::kMaxClasses> totals{};

  void place(i32 tile_class, i64 cost) {
    load += cost;
    totals[static_cast<std::size_t>(tile_class)] += cost;
    ++items;
    largest_load = std::max(largest_load, load);
    largest_item = std::max(largest_item, cost);
  }
  bool last() const { return team + 1 >= teams; }
  void next() {
    ++team;
    load = 0;
  }
};

class Leveller {
 public:
  Leveller(const GroupFacts& group, TaskList& list, Scratch& scratch)
      : group_(group), list_(list), scratch_(scratch) {}

  /// Lays all tasks out once. Lanes carry the teams and levels.
  void lay(std::array<Lane, device::kMaxClasses>& lanes, bool together) {
    i32 cuts = 0;
    i32 run = 0;
    for (i32 i = 0; i < list_.count; ++i) {
      Task& task = list_.tasks[i];
      Lane& lane = lanes[together ? 0 : static_cast<std::size_t>(task.tile_class)];
      const TileClass& tile = group_.classes[static_cast<std::size_t>(task.tile_class)];
      task.uneven = 1;
      task.chunk = cuts;
      task.num_chunks = 1;
      i32 begin = task.kv_begin;
      bool split = false;
      // Costs of pieces placed before the first cut was decided are those of a split task.
      while (true) {
        const bool state = split || task.needs_state != 0;
        const i64 rest = item_cost(tile, task.kv_end - begin, state ? task.num_fused : 0);
        if (lane.load + rest <= lane.level || lane.last()) {
          lane.place(task.tile_class, rest);
          scratch_.run_team[run++] = lane.team;
          break;
        }
        const i32 fit = tokens_that_fit(tile, task, lane.level - lane.load);
        if (fit > 0 && fit < task.kv_end - begin) {
          split = true;
          lane.place(task.tile_class, item_cost(tile, fit, task.num_fused));
          scratch_.run_team[run++] = lane.team;
          begin += fit;
          scratch_.cuts[cuts++] = begin;
          ++task.num_chunks;
        } else if (lane.load == 0) {
          // A level below one tile: the whole rest goes here.
          lane.place(task.tile_class, rest);
          scratch_.run_team[run++] = lane.team;
          lane.next();
          break;
        }
        lane.next();
      }
    }
  }

 private:
  /// Whole KV tiles of a split item that cost at most `room`.
  i32 tokens_that_fit(const TileClass& tile, const Task& task, i64 room) const {
    const i64 fixed = tile.cost.per_item + i64{tile.cost.per_state_row} * task.num_fused;
    const i64 each = tile.cost.per_tile + i64{tile.cost.per_kv_token} * tile.kv_tile;
    if (each <= 0 || room <= fixed) return 0;
    const i64 tiles = (room - fixed) / each;
    return saturate(std::min<i64>(tiles * tile.kv_tile, task.tokens()));
  }

  const GroupFacts& group_;
  TaskList& list_;
  Scratch& scratch_;
};

}  // namespace

bool cut_level(const GroupFacts& group, const BatchFacts& batch, TaskList& list, Scratch& scratch,
               WorkerPlan& plan) {
  const i32 heads = batch.domain_heads;
  const i32 teams = group.num_workers / heads;
  const std::size_t classes = static_cast<std::size_t>(group.num_classes);
  const bool together = classes == 1 || group.target->shared_workers;
  if (teams < 2) return false;
  bool can_cut = false;

  std::array<i64, device::kMaxClasses> totals{};
  std::array<i64, device::kMaxClasses> fixed{};
  for (i32 i = 0; i < list.count; ++i) {
    const Task& task = list.tasks[i];
    const std::size_t c = static_cast<std::size_t>(task.tile_class);
    const CostModel& cost = group.classes[c].cost;
    can_cut |= task.tokens() > group.classes[c].kv_tile;
    const std::size_t lane = together ? 0 : c;
    // Plus one: tasks that cost nothing still need a team.
    totals[lane] +=
        1 + task.cost + (task.needs_state != 0 ? i64{cost.per_state_row} * task.num_fused : 0);
    fixed[lane] = std::max<i64>(
        fixed[lane], cost.per_item + i64{2} * cost.per_state_row * task.num_fused +
                         (cost.per_tile + i64{cost.per_kv_token} * group.classes[c].kv_tile) / 2);
  }
  if (!can_cut) return false;
  std::array<Lane, device::kMaxClasses> lanes{};
  std::array<i32, device::kMaxClasses> shares{};
  if (together) {
    shares[0] = teams;
  } else {
    share_workers(group.num_classes, teams, totals, shares);
    i32 sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += shares[c];
    if (sum > teams) return false;
  }
  // Every cut costs an item and a state, and how many there will be shows only afterwards: the
  // last team says whether the level allowed for too few or too many.
  std::array<i64, device::kMaxClasses> level{};
  std::array<i64, device::kMaxClasses> best_level{};
  std::array<i64, device::kMaxClasses> best_load{};
  std::array<i64, device::kMaxClasses> too_low{};
  std::array<i64, device::kMaxClasses> enough{};
  for (std::size_t c = 0; c < classes; ++c) {
    best_load[c] = INT64_MAX;
    enough[c] = INT64_MAX / 4;
    if (shares[c] > 0) level[c] = totals[c] / shares[c] + fixed[c] / 2;
  }
  Leveller leveller(group, list, scratch);
  const auto lay = [&](const std::array<i64, device::kMaxClasses>& levels) {
    for (std::size_t c = 0; c < classes; ++c) {
      lanes[c] = Lane{};
      lanes[c].teams = std::max(shares[c], 1);
      lanes[c].level = levels[c];
    }
    leveller.lay(lanes, together);
  };
  constexpr int kAttempts = 6;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    lay(level);
    bool again = false;
    for (std::size_t c = 0; c < classes; ++c) {
      const Lane& lane = lanes[c];
      if (shares[c] == 0) continue;
      if (lane.largest_load < best_load[c]) {
        best_load[c] = lane.largest_load;
        best_level[c] = level[c];
      }
      // What is missing in the last teams, or too much in the very last one.
      const i64 missing = (shares[c] - 1 - lane.team) * level[c] + level[c] - lane.load;
      if (missing < 0) {
        too_low[c] = std::max(too_low[c], level[c]);
        level[c] += (-missing * 3 / 2 + shares[c] - 1) / shares[c] + fixed[c] / 16;
      } else {
        enough[c] = std::min(enough[c], level[c]);
        level[c] -= missing * 3 / 4 / shares[c];
      }
      if (level[c] <= too_low[c] || level[c] >= enough[c]) level[c] = (too_low[c] + enough[c]) / 2;
      again |= missing < 0 ? -missing > level[c] / 64 : missing / shares[c] > level[c] / 64;
    }
    if (!again) break;
  }
  bool best = true;
  for (std::size_t c = 0; c < classes; ++c) {
    best &= shares[c] == 0 || lanes[c].level == best_level[c];
  }
  if (!best) lay(best_level);
  plan = WorkerPlan{};
  for (std::size_t c = 0; c < classes; ++c) {
    ClassSummary& out = plan.classes[c];
    out.q_tile = group.classes[c].q_tile;
    const Lane& lane = lanes[together ? 0 : c];
    if (together) {
      for (i32 i = 0; i < list.count; ++i) {
        const Task& task = list.tasks[i];
        if (task.tile_class == static_cast<i32>(c)) {
          out.num_items += i64{task.num_chunks} * heads;
        }
      }
      out.num_workers = out.num_items > 0 ? group.num_workers : 0;
    } else {
      out.num_items = lane.items * heads;
      out.num_workers = shares[c] * heads;
    }
    out.total_load = lane.totals[c] * heads;
    plan.total_load += out.total_load;
    if (out.num_items == 0) continue;
    out.largest_load = lane.largest_load;
    out.largest_item = lane.largest_item;
    plan.largest_load = std::max(plan.largest_load, lane.largest_load);
    plan.largest_item = std::max(plan.largest_item, lane.largest_item);
  }
  return true;
}

void assign_teams(const BatchFacts& batch, i32 num_runs, const Scratch& scratch, WorkerPlan& plan) {
  Assigned* const assigned = static_cast<Assigned*>(scratch.assigned);
  const i32 heads = batch.domain_heads;
  i32 count = 0;
  for (std::size_t c = 0; c < plan.classes.size(); ++c) {
    plan.class_begin[c] = count;
    for (i32 r = 0; r < num_runs && plan.classes[c].num_items > 0; ++r) {
      if (scratch.run_class[r] != c) continue;
      const i32 first = scratch.run_team[r] * heads;
      for (i32 h = 0; h < heads; ++h) assigned[count++] = {first + h, r, h, 1};
    }
    plan.class_end[c] = count;
  }
  plan.num_assigned = count;
}

}  // namespace plait::planning
