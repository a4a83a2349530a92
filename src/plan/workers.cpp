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

WorkerPlan assign_group(const GroupFacts& group, i32 num_runs, i32 run_items,
                        const Scratch& scratch) {
  WorkerPlan plan;
  const std::size_t count = static_cast<std::size_t>(group.num_classes);
  std::array<i64, device::kMaxClasses> totals{};
  std::array<i32, device::kMaxClasses> run_counts{};
  for (i32 r = 0; r < num_runs; ++r) {
    const std::size_t c = scratch.run_class[r];
    ++run_counts[c];
    totals[c] += scratch.run_cost[r];
  }
  for (std::size_t c = 0; c < count; ++c) {
    plan.classes[c].num_items = i64{run_counts[c]} * run_items;
    totals[c] *= run_items;
  }
  Assigned* const out = scratch.assigned;
  const AssignScratch assign_scratch{scratch.order, scratch.loads, scratch.heap, scratch.buckets};
  AssignJob job;
  job.cost = scratch.run_cost;
  job.run_items = run_items;
  job.runs = scratch.class_runs;
  job.balance = group.policy.balance;
  const bool together = group.target->shared_workers && count > 1;
  if (!together) {
    // Items that cost nothing still need a worker.
    std::array<i64, device::kMaxClasses> weights = totals;
    for (std::size_t c = 0; c < count; ++c) weights[c] += plan.classes[c].num_items;
    std::array<i32, device::kMaxClasses> shares{};
    share_workers(group.num_classes, group.num_workers, weights, shares);
    for (std::size_t c = 0; c < count; ++c) {
      plan.classes[c].num_workers = plan.classes[c].num_items > 0 ? shares[c] : 0;
    }
  }
  for (std::size_t c = 0; c < (together ? 1 : count); ++c) {
    i32* runs = scratch.class_runs;
    if (together || run_counts[c] == num_runs) {
      for (i32 r = 0; r < num_runs; ++r) runs[r] = r;
      job.num_runs = num_runs;
    } else {
      if (run_counts[c] == 0) continue;
      job.num_runs = 0;
      for (i32 r = 0; r < num_runs; ++r) {
        if (scratch.run_class[r] == c) runs[job.num_runs++] = r;
      }
    }
    if (job.num_runs == 0) continue;
    job.num_workers = together ? group.num_workers : plan.classes[c].num_workers;
    const AssignResult result = assign(job, assign_scratch, out + plan.num_assigned);
    plan.class_begin[c] = plan.num_assigned;
    plan.num_assigned += result.num_assigned;
    plan.class_end[c] = plan.num_assigned;
    plan.total_load += result.total_load;
    plan.largest_load = std::max(plan.largest_load, result.largest_load);
    plan.largest_item = std::max(plan.largest_item, result.largest_item);
    if (!together) {
      plan.classes[c].largest_load = result.largest_load;
      plan.classes[c].largest_item = result.largest_item;
    }
  }
  plan.mixed = together;
  if (together) plan.class_end.fill(plan.num_assigned);
  for (std::size_t c = 0; c < count; ++c) {
    ClassSummary& summary = plan.classes[c];
    summary.q_tile = group.classes[c].q_tile;
    summary.total_load = totals[c];
    if (together && summary.num_items > 0) {
      summary.num_workers = group.num_workers;
      summary.largest_load = plan.largest_load;  // of all classes together
      summary.largest_item = plan.largest_item;
    }
  }
  return plan;
}

void write_slices(const GroupFacts& group, const WorkerPlan& plan, const Scratch& scratch,
                  BlobWriter& blob, device::GroupHeader& header) {
  const Assigned* const assigned = scratch.assigned;
  header.num_classes = group.num_classes;
  for (i32 c = 0; c < group.num_classes; ++c) {
    const std::size_t k = static_cast<std::size_t>(c);
    device::ClassHeader& out = header.classes[k];
    out.q_tile = group.classes[k].q_tile;
    out.kv_tile = group.classes[k].kv_tile;
    out.num_workers = plan.classes[k].num_workers;
    out.worker_offset = blob.open<i32>(i64{out.num_workers} + 1);
    i32* const indptr = blob.at<i32>(out.worker_offset);
    for (i32 w = 0; w <= out.num_workers; ++w) indptr[w] = 0;
    i32 count = 0;
    if (plan.classes[k].num_items > 0) {
      for (i32 i = plan.class_begin[k]; i < plan.class_end[k]; ++i) {
        if (plan.mixed && scratch.run_class[assigned[i].run] != c) continue;
        ++indptr[assigned[i].worker + 1];
        ++count;
      }
      for (i32 w = 0; w < out.num_workers; ++w) indptr[w + 1] += indptr[w];
    }
    out.num_slices = count;
    out.slice_offset = blob.open<device::Slice>(count);
    if (count == 0) continue;
    device::Slice* const slices = blob.at<device::Slice>(out.slice_offset);
    i32* const next = scratch.heap;
    for (i32 w = 0; w < out.num_workers; ++w) next[w] = indptr[w];
    for (i32 i = plan.class_begin[k]; i < plan.class_end[k]; ++i) {
      const Assigned& a = assigned[i];
      if (plan.mixed && scratch.run_class[a.run] != c) continue;
      slices[next[a.worker]++] = {a.run, a.first, a.count};
    }
  }
}

}  // namespace plait::planning
