// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/level.h"

namespace plait::planning {
namespace {

using ClassLoads = std::array<i64, device::kMaxClasses>;

/// Teams of one set of workers and how far they are filled.
struct Lane {
  i32 teams = 0;
  i64 level = 0;
  i32 team = 0;
  i64 load = 0;
  i64 largest_before = 0;  // load of the teams before
  i64 largest_item = 0;
  ClassLoads totals{};
  ClassLoads items{};
  CutSize size;  // of its tasks

  void place(i32 tile_class, i64 cost) {
    load += cost;
    totals[static_cast<std::size_t>(tile_class)] += cost;
    ++items[static_cast<std::size_t>(tile_class)];
    largest_item = std::max(largest_item, cost);
  }
  /// Whether a task goes here whole, for what it costs as one item: nearly all do.
  bool takes(const Task& task) const { return !task.needs_state && load + task.cost <= level; }
  i64 largest_load() const { return std::max(largest_before, load); }
  bool last() const { return team + 1 >= teams; }
  void next() {
    ++team;
    largest_before = largest_load();
    load = 0;
  }
};
using Lanes = std::array<Lane, device::kMaxClasses>;

/// Lays a task that its team does not take whole after those before it: place(team) for each of its
/// items, cut(slot) between them.
template <class Place, class Cut>
void lay_task(const TileClass& tile, const Task& task, Lane& lane, Place&& place, Cut&& cut) {
  const CostModel& cost = tile.cost;
  const i64 fixed = cost.per_item + i64{cost.per_state_row} * task.num_fused;  // of a split item
  const i64 each = cost.per_tile + i64{cost.per_kv_token} * tile.kv_tile;
  i32 begin = task.kv_begin;
  // Costs of pieces placed before the first cut was decided are those of a split task.
  i64 rest = !task.needs_state ? task.cost : item_cost(tile, task.tokens(), task.num_fused);
  while (lane.load + rest > lane.level && !lane.last()) {
    // Whole KV tiles of a split item that the team has room for.
    const i64 room = lane.level - lane.load - fixed;
    const i64 tiles = each > 0 && room > 0 ? room / each : 0;
    const i64 fit = tiles * tile.kv_tile;
    if (tiles > 0 && fit < task.kv_end - begin) {
      lane.place(task.tile_class, std::min(kMaxCost, fixed + tiles * each));
      place(lane.team);
      begin += static_cast<i32>(fit);
      cut(begin);
      rest = item_cost(tile, task.kv_end - begin, task.num_fused);
    } else if (lane.load == 0) {
      // A level below one tile: the whole rest goes here.
      lane.place(task.tile_class, rest);
      place(lane.team);
      lane.next();
      return;
    }
    lane.next();
  }
  lane.place(task.tile_class, rest);
  place(lane.team);
}

/// The tasks of one set of workers as the search reads them, again and again.
struct LaneTasks {
  const i64* whole_cost = nullptr;  // kNever if it cannot go anywhere whole, and after the last
  const i32* task = nullptr;        // place in the list
  i32 count = 0;
  // As if every task were one item, without a state.
  ClassLoads totals{};
  ClassLoads items{};
};
using LaneLists = std::array<LaneTasks, device::kMaxClasses>;
constexpr i64 kNever = INT64_MAX / 4;

Lane empty_lane(i32 teams, i64 level) {
  Lane lane;
  lane.teams = std::max(teams, 1);
  lane.level = level;
  return lane;
}

/// Lays the tasks of one set of workers out, without a trace but the lane.
Lane try_level(const GroupFacts& group, const LevelPlan& plan, const TaskList& list,
               const LaneTasks& tasks, i32 teams, i64 level) {
  Lane lane = empty_lane(teams, level);
  for (std::size_t c = 0; c < lane.totals.size(); ++c) {
    lane.totals[c] = tasks.totals[c] * plan.copies;
    lane.items[c] = tasks.items[c] * plan.copies;
    lane.size.runs += lane.items[c];
  }
  const i64* const end = tasks.whole_cost + tasks.count;
  for (i32 copy = 0; copy < plan.copies; ++copy) {
    for (const i64* cost = tasks.whole_cost; cost != end; ++cost) {
      // As many as the team takes whole: nearly all.
      i64 load = lane.load;
      i64 largest = lane.largest_item;
      for (i64 next = load + *cost; next <= level; next = load + *cost) {
        load = next;
        largest = std::max(largest, *cost++);
      }
      lane.load = load;
      lane.largest_item = largest;
      if (cost == end) break;
      const Task& task = list.tasks[tasks.task[cost - tasks.whole_cost]];
      const std::size_t c = static_cast<std::size_t>(task.tile_class);
      lane.totals[c] -= task.cost;
      --lane.items[c];
      i32 items = 0;
      lay_task(
          group.classes[c], task, lane, [&](i32) { ++items; }, [](i32) {});
      lane.size.runs += items - 1;
      if (items > 1 || task.needs_state) {
        lane.size.state_rows += i64{items} * task.num_fused * plan.team * plan.heads_each;
      }
    }
  }
  return lane;
}

void summarise(const GroupFacts& group, const LevelPlan& plan, const Lanes& lanes,
               WorkerPlan& workers) {
  workers = WorkerPlan{};
  for (std::size_t c = 0; c < static_cast<std::size_t>(group.num_classes); ++c) {
    ClassSummary& out = workers.classes[c];
    out.q_tile = group.classes[c].q_tile;
    const Lane& lane = lanes[plan.together ? 0 : c];
    out.num_items = lane.items[c] * plan.team * plan.heads_each;
    out.total_load = lane.totals[c] * plan.team * plan.heads_each;
    workers.total_load += out.total_load;
    if (out.num_items == 0) continue;
    out.num_workers = plan.together ? group.num_workers : plan.shares[c] * plan.team;
    out.largest_load = lane.largest_load() * plan.heads_each;
    out.largest_item = lane.largest_item;
    workers.largest_load = std::max(workers.largest_load, out.largest_load);
    workers.largest_item = std::max(workers.largest_item, lane.largest_item);
  }
}

/// What the tasks of each set of workers cost, and about what a cut adds to it.
struct Demand {
  ClassLoads totals{};
  ClassLoads per_cut{};
  bool can_cut = false;  // some task has more than one KV tile
};

/// Sorts the tasks by the sets of workers and asks what they demand.
Demand demand_of(const GroupFacts& group, const TaskList& list, const WholeSize& whole,
                 bool together, const Scratch& scratch, LaneLists& lanes) {
  std::array<i32, device::kMaxClasses> next{};
  i32 begin = 0;
  for (std::size_t c = 0; c < lanes.size(); ++c) {
    LaneTasks& lane = lanes[together ? 0 : c];
    lane.totals[c] = whole.runs.classes[c].total;
    lane.items[c] = whole.runs.classes[c].runs;
    lane.count += whole.runs.classes[c].runs;
    lanes[c].whole_cost = scratch.lane_cost + begin;
    lanes[c].task = scratch.lane_task + begin;
    next[c] = begin;
    begin += together ? 0 : whole.runs.classes[c].runs + 1;
  }
  Demand demand;
  for (i32 i = 0; i < list.count;) {
    // As long as the class stays the same.
    const i32 tile_class = list.tasks[i].tile_class;
    const std::size_t c = static_cast<std::size_t>(tile_class);
    const std::size_t lane = together ? 0 : c;
    const TileClass& tile = group.classes[c];
    const CostModel& cost = tile.cost;
    i32 to = next[lane];
    i32 rows = 0;
    i32 tokens = 0;
    i64 total = 0;
    for (; i < list.count && list.tasks[i].tile_class == tile_class; ++i, ++to) {
      const Task& task = list.tasks[i];
      scratch.lane_task[to] = i;
      scratch.lane_cost[to] = task.needs_state ? kNever : task.cost;
      // Plus one: tasks that cost nothing still need a team.
      total += 1 + task.cost;
      if (task.needs_state) total += i64{cost.per_state_row} * task.num_fused;
      rows = std::max(rows, task.num_fused);
      tokens = std::max(tokens, task.tokens());
    }
    next[lane] = to;
    demand.can_cut |= tokens > tile.kv_tile;
    demand.totals[lane] += total;
    demand.per_cut[lane] = std::max<i64>(
        demand.per_cut[lane], cost.per_item + i64{2} * cost.per_state_row * rows +
                                  (cost.per_tile + i64{cost.per_kv_token} * tile.kv_tile) / 2);
  }
  for (std::size_t c = 0; c < lanes.size(); ++c) {
    if (lanes[c].count > 0) scratch.lane_cost[next[c]] = kNever;
  }
  return demand;
}

/// The level of one set of workers, closed in from both sides. Every cut costs an item and a state,
/// and how many there will be shows only afterwards: the last team says whether the level allowed
/// for too few or too many.
class LevelSearch {
 public:
  LevelSearch() = default;
  LevelSearch(i64 total, i64 per_cut, i32 share)
      : share_(share), per_cut_(per_cut), level_(total / share + per_cut / 2) {}

  i32 share() const { return share_; }
  i64 level() const { return level_; }
  /// The best of those that it learned from.
  const Lane& best() const { return best_; }

  /// Learns from tasks laid out at level(); false if another level would hardly change anything.
  bool improve(const Lane& lane) {
    if (lane.largest_load() < best_load_) {
      best_load_ = lane.largest_load();
      best_ = lane;
    }
    // What is missing in the last teams, or too much in the very last one.
    const i64 missing = (share_ - 1 - lane.team) * level_ + level_ - lane.load;
    if (missing < 0) {
      too_low_ = std::max(too_low_, level_);
      level_ += (-missing * 3 / 2 + share_ - 1) / share_ + per_cut_ / 16;
    } else {
      enough_ = std::min(enough_, level_);
      level_ -= missing * 3 / 4 / share_;
    }
    if (level_ <= too_low_ || level_ >= enough_) level_ = (too_low_ + enough_) / 2;
    return missing < 0 ? -missing > level_ / 64 : missing / share_ > level_ / 64;
  }

 private:
  i32 share_ = 0;  // teams
  i64 per_cut_ = 0;
  i64 level_ = 0;
  i64 too_low_ = 0;
  i64 enough_ = INT64_MAX / 4;
  Lane best_;
  i64 best_load_ = INT64_MAX;
};

/// Whether workers are to have two neighbouring heads of a run: where kernels compute them at once,
/// and no more of the runs are cut for it. Fewer runs than teams have to be cut for each of them,
/// and pieces of two heads cost twice the merging.
bool takes_pairs(const GroupFacts& group, const WholeSize& whole, i32 teams) {
  i32 runs = 0;
  for (std::size_t c = 0; c < static_cast<std::size_t>(group.num_classes); ++c) {
    if (whole.runs.classes[c].runs > 0 && !group.classes[c].pairs_heads) return false;
    runs += whole.runs.classes[c].runs;
  }
  return runs >= teams;
}

}  // namespace

bool find_level(const GroupFacts& group, const BatchFacts& batch, const TaskList& list,
                const WholeSize& whole, const Scratch& scratch, LevelPlan& plan) {
  plan = LevelPlan{};
  plan.team = team_heads(batch.domain_heads, group.num_workers);
  plan.copies = batch.domain_heads / plan.team;
  const i32 teams = group.num_workers / plan.team;
  if (plan.copies % 2 == 0 && takes_pairs(group, whole, teams)) {
    plan.heads_each = 2;
    plan.copies /= 2;
  }
  const std::size_t classes = static_cast<std::size_t>(group.num_classes);
  plan.together = classes == 1 || group.target->shared_workers;
  if (teams < 2) return false;
  LaneLists tasks;
  Demand demand = demand_of(group, list, whole, plan.together, scratch, tasks);
  if (!demand.can_cut) return false;
  for (i64& total : demand.totals) total *= plan.copies;
  if (plan.together) {
    plan.shares[0] = teams;
  } else {
    share_workers(group.num_classes, teams, demand.totals, plan.shares);
    i32 sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += plan.shares[c];
    if (sum > teams) return false;
  }

  std::array<LevelSearch, device::kMaxClasses> searches;
  for (std::size_t c = 0; c < classes; ++c) {
    if (plan.shares[c] == 0) continue;
    searches[c] = LevelSearch(demand.totals[c], demand.per_cut[c], plan.shares[c]);
  }
  constexpr int kAttempts = 6;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    bool again = false;
    for (std::size_t c = 0; c < classes; ++c) {
      LevelSearch& search = searches[c];
      if (search.share() == 0) continue;
      again |=
          search.improve(try_level(group, plan, list, tasks[c], search.share(), search.level()));
    }
    if (!again) break;
  }
  Lanes lanes;
  for (std::size_t c = 0; c < classes; ++c) {
    lanes[c] = searches[c].best();
    plan.level[c] = lanes[c].level;
    plan.size.runs += lanes[c].size.runs;
    plan.size.state_rows += lanes[c].size.state_rows;
  }
  summarise(group, plan, lanes, plan.workers);
  return true;
}

void cut_at_level(const GroupFacts& group, const LevelPlan& plan, TaskList& list,
                  Scratch& scratch) {
  Lanes lanes;
  for (std::size_t c = 0; c < lanes.size(); ++c) {
    lanes[c] = empty_lane(plan.shares[c], plan.level[c]);
  }
  i32 cuts = 0;
  i32* team_of = scratch.run_team;
  for (Task *task = list.tasks, *end = task + list.count; task != end; ++task) {
    const std::size_t c = static_cast<std::size_t>(task->tile_class);
    Lane& lane = lanes[plan.together ? 0 : c];
    task->num_chunks = 1;
    if (lane.takes(*task)) {
      lane.load += task->cost;
      *team_of++ = lane.team;
      continue;
    }
    task->uneven = true;
    task->chunk = cuts;
    lay_task(
        group.classes[c], *task, lane, [&](i32 team) { *team_of++ = team; },
        [&](i32 slot) {
          scratch.cuts[cuts++] = slot;
          ++task->num_chunks;
        });
  }
}

}  // namespace plait::planning
