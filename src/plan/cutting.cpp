// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/cutting.h"

#include <algorithm>

#include "plan/chunking.h"
#include "plan/level.h"

namespace plait::planning {
namespace {

/// The bound of list scheduling, for each set of workers.
bool keeps_bound(const GroupFacts& group, const WorkerPlan& plan) {
  const auto holds = [](i64 makespan, i64 total, i64 item, i64 workers) {
    return makespan - item <= (total - item) / workers;
  };
  if (group.num_classes > 1 && group.target->shared_workers) {
    return holds(plan.largest_load, plan.total_load, plan.largest_item, group.num_workers);
  }
  for (const ClassSummary& c : plan.classes) {
    if (c.num_items > 0 && !holds(c.largest_load, c.total_load, c.largest_item, c.num_workers)) {
      return false;
    }
  }
  return true;
}

class Cutter {
 public:
  Cutter(const GroupFacts& group, const WholeSize& whole, BatchFacts& batch, TaskList& list,
         BlobWriter& blob, Scratch& scratch, WorkerPlan& workers)
      : group_(group),
        whole_(whole),
        batch_(batch),
        list_(list),
        blob_(blob),
        scratch_(scratch),
        workers_(workers) {}

  RunSection run() {
    if (group_.policy.kind == PolicyKind::kFixedChunk) {
      cut_fixed(group_, batch_, list_);
      return assign_and_write();
    }
    if (group_.policy.kind == PolicyKind::kUnsplit || !group_.allow_split) {
      cut_unsplit(group_, batch_, list_);
      return assign_and_write();
    }
    mean_ = std::max<i64>(1, (whole_.total + group_.num_workers - 1) / group_.num_workers);
    return group_.canonical() ? canonical() : balanced();
  }

 private:
  void assign() { assign(cost_runs(group_, list_, scratch_)); }
  void assign(const RunCosts& costs) {
    num_runs_ = costs.count;
    workers_ = assign_group(group_, costs, batch_.domain_heads, scratch_);
  }
  /// Once, when it is known how the tasks are cut best.
  RunSection write() { return write_runs(group_, batch_, list_, num_runs_, blob_, scratch_); }
  RunSection assign_and_write() {
    assign();
    return write();
  }

  RunSection canonical() {
    const auto within = [&](const CutSize& size) {
      return size.runs <= group_.bounds.runs &&
             size.runs * batch_.domain_heads <= group_.bounds.items &&
             size.state_rows <= group_.bounds.state_rows;
    };
    for (i64 limit = mean_ / 2; limit < kMaxCost; limit *= 2) {
      if (within(cut_to_limit(group_, batch_, list_, limit))) return assign_and_write();
      limit = std::max<i64>(limit, 1);
    }
    cut_unsplit(group_, batch_, list_);
    return assign_and_write();
  }

  /// Whole items first (none above one mean load), longest first; if they do not level, cut where
  /// workers are full; if there are too few workers for that, cut smaller and smaller.
  RunSection balanced() {
    if (whole_.largest > mean_) {
      cut_to_limit(group_, batch_, list_, mean_);
      assign();
    } else if (whole_.size.state_rows > 0) {
      assign();
    } else {
      assign(whole_.runs);  // nothing is cut
    }
    if (workers_.largest_load <= mean_ + mean_ / 128 || !group_.policy.balance) return write();
    LevelPlan level;
    if (!pays(level)) return workers_.largest_load <= good() ? write() : smaller();
    split_heads(level.team * level.heads_each, batch_, list_);
    cut_at_level(group_, level, list_, scratch_);
    num_runs_ = cost_runs(group_, list_, scratch_).count;
    workers_ = level.workers;
    workers_.team = level.team;
    workers_.heads_each = level.heads_each;
    workers_.num_runs = num_runs_;
    return write();
  }

  /// Whether level cutting fits the budgets and beats the assignment at hand. Changes no task.
  bool pays(LevelPlan& level) const {
    // The last merge is waited for, about as long as an item takes to begin and end.
    i64 wait = 0;
    for (std::size_t c = 0; c < static_cast<std::size_t>(group_.num_classes); ++c) {
      if (whole_.runs.classes[c].runs == 0) continue;
      wait = std::max<i64>(wait, group_.classes[c].cost.per_item);
    }
    const i64 load = workers_.largest_load;
    if (!find_level(group_, batch_, list_, whole_, scratch_, level) ||
        level.workers.largest_load >= load - std::max(load / 256, wait) ||
        !keeps_bound(group_, level.workers)) {
      return false;
    }
    return (level.size.runs - whole_.size.runs * level.copies) * level.team * level.heads_each <=
               group_.bounds.split_items &&
           level.size.state_rows - whole_.size.state_rows <= group_.bounds.split_rows;
  }

  /// Halves, quarters and eighths of a mean load, while they fit; whole ones are assigned.
  RunSection smaller() {
    const auto within = [&](const CutSize& size) {
      return (size.runs - whole_.size.runs) * batch_.domain_heads <= group_.bounds.split_items &&
             size.state_rows - whole_.size.state_rows <= group_.bounds.split_rows;
    };
    i64 best_load = workers_.largest_load;
    i64 best_limit = mean_;
    i64 assigned_limit = mean_;
    i64 cut_limit = mean_;
    i64 largest = largest_of_longest();
    for (i64 divisor : {2, 4, 8}) {
      if (largest <= mean_ / divisor) continue;  // would cut nothing, or nothing that matters
      cut_limit = std::max<i64>(1, mean_ / divisor);
      const CutSize size = cut_to_limit(group_, batch_, list_, cut_limit);
      if (!within(size)) break;
      // Finer cuts cost more, and so do those finer still.
      if (least_total(size) / group_.num_workers >= best_load - best_load / 128) break;
      assign();
      assigned_limit = cut_limit;
      if (workers_.largest_load < best_load - best_load / 128) {
        best_load = workers_.largest_load;
        best_limit = cut_limit;
        largest = largest_of_longest();
      }
      if (workers_.largest_load <= good()) break;
    }
    if (cut_limit != best_limit) cut_to_limit(group_, batch_, list_, best_limit);
    return assigned_limit == best_limit ? write() : assign_and_write();
  }

  /// The largest task of those that share workers with the longest load.
  i64 largest_of_longest() const {
    if (workers_.mixed) return whole_.largest;
    std::size_t longest = 0;
    for (std::size_t c = 1; c < workers_.classes.size(); ++c) {
      const ClassSummary* of = workers_.classes.data();
      if (of[c].largest_load > of[longest].largest_load) longest = c;
    }
    return whole_.runs.classes[longest].largest;
  }

  /// What all items cost at least when tasks are cut like that.
  i64 least_total(const CutSize& size) const {
    i64 per_item = kMaxCost;
    i64 per_state_row = kMaxCost;
    for (std::size_t c = 0; c < static_cast<std::size_t>(group_.num_classes); ++c) {
      per_item = std::min<i64>(per_item, group_.classes[c].cost.per_item);
      per_state_row = std::min<i64>(per_state_row, group_.classes[c].cost.per_state_row);
    }
    return whole_.total + (size.runs - whole_.size.runs) * batch_.domain_heads * per_item +
           (size.state_rows - whole_.size.state_rows) * per_state_row;
  }

  /// Good enough not to try chunks of one size, each of which costs an assignment.
  i64 good() const { return mean_ + mean_ / 32; }

  const GroupFacts& group_;
  const WholeSize& whole_;
  BatchFacts& batch_;
  TaskList& list_;
  BlobWriter& blob_;
  Scratch& scratch_;
  WorkerPlan& workers_;
  i64 mean_ = 1;  // load of a worker
  i32 num_runs_ = 0;
};

}  // namespace

void make_tasks(const GroupFacts& group, const BatchFacts& batch, TaskList& list) {
  if (!group.canonical()) {
    build_tasks(group, batch, list);
    mark_shared_rows(group, batch, list);
    return;
  }
  build_canonical_tasks(group, batch, false, list);
  mark_shared_rows(group, batch, list);
  const CutSize forced = cut_unsplit(group, batch, list);
  const bool fits = forced.runs <= group.bounds.runs &&
                    forced.runs * batch.domain_heads <= group.bounds.items &&
                    forced.state_rows <= group.bounds.state_rows;
  if (!fits || (forced.state_rows > 0 && !group.allow_split && group.policy.allow_write_through)) {
    // Sharing would need more partial states than the workspace holds: the same segments, flat.
    build_canonical_tasks(group, batch, true, list);
    mark_shared_rows(group, batch, list);
  }
}

RunSection cut_and_assign(const GroupFacts& group, const WholeSize& whole, BatchFacts& batch,
                          TaskList& list, BlobWriter& blob, Scratch& scratch, WorkerPlan& workers) {
  return Cutter(group, whole, batch, list, blob, scratch, workers).run();
}

}  // namespace plait::planning
