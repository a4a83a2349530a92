// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/workers.h"

namespace plait::planning {
namespace {

/// floor(part / total * workers) without leaving 64 bits; part <= total, workers <= 2^20.
i64 floor_share(i64 part, i64 total, i64 workers) {
  while (total >= i64{1} << 42) {
    total >>= 1;
    part >>= 1;
  }
  return part * workers / std::max<i64>(total, 1);
}

ClassCosts sum_of(const RunCosts& costs) {
  ClassCosts sum;
  for (const ClassCosts& c : costs.classes) {
    sum.runs += c.runs;
    sum.total += c.total;
    sum.largest = std::max(sum.largest, c.largest);
    sum.smallest = std::min(sum.smallest, c.smallest);
  }
  return sum;
}

}  // namespace

void share_workers(i32 num_classes, i32 workers, const std::array<i64, device::kMaxClasses>& totals,
                   std::array<i32, device::kMaxClasses>& shares) {
  i64 total = 0;
  const std::size_t count = static_cast<std::size_t>(num_classes);
  for (std::size_t c = 0; c < count; ++c) total += totals[c];
  i32 left = workers;
  for (std::size_t c = 0; c < count; ++c) {
    shares[c] = 0;
    if (totals[c] == 0) continue;
    shares[c] = static_cast<i32>(std::max<i64>(floor_share(totals[c], total, workers), 1));
    left -= shares[c];
  }
  // One more to the class whose workers have most to do, until none is left (at most num_classes
  // times, since shares were rounded down); one less if the minimum of one handed out too many.
  for (; left != 0; left += left > 0 ? -1 : 1) {
    std::size_t chosen = count;
    for (std::size_t c = 0; c < count; ++c) {
      if (totals[c] == 0 || (left < 0 && shares[c] < 2)) continue;
      const i64 after = left > 0 ? shares[c] : shares[c] - 1;
      if (chosen == count) {
        chosen = c;
        continue;
      }
      const i64 other = left > 0 ? shares[chosen] : shares[chosen] - 1;
      const bool more = totals[c] / after > totals[chosen] / other;
      if (left > 0 ? more : !more) chosen = c;
    }
    if (chosen == count) return;
    shares[chosen] += left > 0 ? 1 : -1;
  }
  // A class with hardly any work keeps a whole worker: whoever misses that one most takes it from
  // the class that feels it least.
  for (std::size_t move = 1; move < count; ++move) {
    std::size_t to = 0;
    std::size_t from = count;
    const auto load = [&](std::size_t c, i32 workers_of_class) {
      return totals[c] == 0 ? 0 : totals[c] / workers_of_class;
    };
    for (std::size_t c = 1; c < count; ++c) {
      if (load(c, shares[c]) > load(to, shares[to])) to = c;
    }
    for (std::size_t c = 0; c < count; ++c) {
      if (c == to || shares[c] < 2) continue;
      if (from == count || load(c, shares[c] - 1) < load(from, shares[from] - 1)) from = c;
    }
    if (from == count || load(from, shares[from] - 1) >= load(to, shares[to])) return;
    --shares[from];
    ++shares[to];
  }
}

void list_runs(const Scratch& scratch, i32 all, i32 wanted, std::size_t tile_class) {
  i32* const runs = scratch.class_runs;
  if (wanted == all) {
    for (i32 r = 0; r < all; ++r) runs[r] = r;
    return;
  }
  i32 count = 0;
  for (i32 r = 0; count < wanted; ++r) {
    runs[count] = r;
    count += scratch.run_class[r] == tile_class ? 1 : 0;
  }
}

WorkerPlan assign_group(const GroupFacts& group, const RunCosts& costs, i32 run_items,
                        const Scratch& scratch) {
  WorkerPlan plan;
  const std::size_t count = static_cast<std::size_t>(group.num_classes);
  plan.mixed = group.target->shared_workers && count > 1;
  // Items that cost nothing still need a worker.
  std::array<i64, device::kMaxClasses> weights{};
  for (std::size_t c = 0; c < count; ++c) {
    ClassSummary& summary = plan.classes[c];
    summary.q_tile = group.classes[c].q_tile;
    summary.num_items = i64{costs.classes[c].runs} * run_items;
    summary.total_load = costs.classes[c].total * run_items;
    weights[c] = summary.total_load + summary.num_items;
  }
  if (!plan.mixed) {
    std::array<i32, device::kMaxClasses> shares{};
    share_workers(group.num_classes, group.num_workers, weights, shares);
    for (std::size_t c = 0; c < count; ++c) {
      plan.classes[c].num_workers = plan.classes[c].num_items > 0 ? shares[c] : 0;
    }
  }
  AssignJob job;
  job.cost = scratch.run_cost;
  job.run_items = run_items;
  job.runs = scratch.class_runs;
  job.balance = group.policy.balance;
  const AssignScratch assign_scratch{scratch.order, scratch.half_sorted, scratch.run_keys,
                                     scratch.loads, scratch.workers,     scratch.worker_keys};
  for (std::size_t c = 0; c < (plan.mixed ? 1 : count); ++c) {
    job.sum = plan.mixed ? sum_of(costs) : costs.classes[c];
    job.num_runs = job.sum.runs;
    if (job.num_runs == 0) continue;
    list_runs(scratch, costs.count, job.num_runs, c);
    job.num_workers = plan.mixed ? group.num_workers : plan.classes[c].num_workers;
    const AssignResult result = assign(job, assign_scratch, scratch.assigned + plan.num_assigned);
    plan.by_worker[c] = result.by_worker;
    plan.class_begin[c] = plan.num_assigned;
    plan.num_assigned += result.num_assigned;
    plan.class_end[c] = plan.num_assigned;
    plan.total_load += result.total_load;
    plan.largest_load = std::max(plan.largest_load, result.largest_load);
    plan.largest_item = std::max(plan.largest_item, result.largest_item);
    if (!plan.mixed) {
      plan.classes[c].largest_load = result.largest_load;
      plan.classes[c].largest_item = result.largest_item;
    }
  }
  if (!plan.mixed) return plan;
  plan.class_end.fill(plan.num_assigned);
  for (std::size_t c = 0; c < count; ++c) {
    ClassSummary& summary = plan.classes[c];
    if (summary.num_items == 0) continue;
    summary.num_workers = group.num_workers;
    summary.largest_load = plan.largest_load;  // of all classes together
    summary.largest_item = plan.largest_item;
  }
  return plan;
}

}  // namespace plait::planning
