// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/assign.h"

#include <bit>

#include "plan/sort.h"

namespace plait::planning {
namespace {

/// Shift that brings `largest` below 2^bucket_bits.
int sort_shift(i64 largest, int bucket_bits) {
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(largest)));
  return std::max(0, bits - bucket_bits);
}
constexpr int kItemBits = 10;   // sort_by_ten_bits
constexpr int kWorkerBits = 8;  // sort_by_byte: fewer workers than runs, and sorted more often

Assigned* round_robin(const AssignJob& job, i64* loads, Assigned* out) {
  i32 worker = 0;
  for (i32 i = 0; i < job.num_runs; ++i) {
    const i32 run = job.runs[i];
    for (i32 k = 0; k < job.run_items; ++k) {
      *out++ = {{run, k, 1}, worker};
      loads[worker] += job.cost[run];
      if (++worker == job.num_workers) worker = 0;
    }
  }
  return out;
}

/// Items that all cost the same: what longest-first does, without looking for the least loaded.
Assigned* equal_items(const AssignJob& job, i64* loads, Assigned* out) {
  const i64 items = i64{job.num_runs} * job.run_items;
  const i64 each = items / job.num_workers;
  const i64 more = items % job.num_workers;
  const i64 cost = job.cost[job.runs[0]];
  i32 run = 0;
  i32 first = 0;
  for (i32 w = 0; w < job.num_workers; ++w) {
    i64 left = each + (w < more ? 1 : 0);
    loads[w] = left * cost;
    while (left > 0) {
      const i32 count = static_cast<i32>(std::min<i64>(left, job.run_items - first));
      *out++ = {{job.runs[run], first, count}, w};
      left -= count;
      first += count;
      if (first == job.run_items) {
        ++run;
        first = 0;
      }
    }
  }
  return out;
}

class Rounds {
 public:
  Rounds(const AssignJob& job, const AssignScratch& scratch, i64 total, Assigned* out)
      : job_(job),
        scratch_(scratch),
        next_{scratch.order, job.run_items},
        end_(scratch.order + job.num_runs),
        level_(total / job.num_workers),
        // Loads never pass level + largest item.
        shift_(sort_shift(level_ + job.sum.largest, kWorkerBits)),
        out_(out) {
    for (i32 w = 0; w < job.num_workers; ++w) scratch_.workers[w] = w;
  }

  /// Every item goes to a worker whose load before it is at most (T - c) / C, T the total and c
  /// the item: that alone proves the bound. Least loaded workers take the longest items.
  Assigned* run() {
    // While workers can take half of an item below the level they are filled towards it, in
    // rounds: each takes items for seven eighths of what it lacks, at least one.
    bool sorted = true;  // all loads are zero
    while (!done()) {
      if (!sorted) sort_workers();
      sorted = false;
      if (!fill_round()) break;
    }
    while (!done()) {
      sort_workers();
      top_up_round();
    }
    return out_;
  }

 private:
  /// The next item: runs are in order, longest first, and items of a run one after the other.
  struct Next {
    const i32* run;
    i32 left;  // items of the run
  };

  bool done() const { return next_.run == end_; }

  void sort_workers() {
    // Stable from worker order, so that ties go to the lowest id.
    least_ =
        sort_by_byte({scratch_.workers, static_cast<std::size_t>(job_.num_workers)},
                     scratch_.worker_keys, least_, [loads = scratch_.loads, shift = shift_](i32 w) {
                       return static_cast<std::uint8_t>(loads[w] >> shift);
                     });
  }

  bool fill_round() {
    // In locals, which what is written cannot change.
    const i64* const cost_of = job_.cost;
    const i32 per_run = job_.run_items;
    const i32* const end = end_;
    const i64 level = level_;
    i64* const loads = scratch_.loads;
    Assigned* out = out_;
    const i32* run = next_.run;
    i32 left = next_.left;
    i64 cost = cost_of[*run];
    i64 most = level - ((cost + 1) >> 1);  // for C >= 2 at most (T - c) / C
    const i32* const last_worker = scratch_.workers + job_.num_workers;
    for (const i32* worker = scratch_.workers; worker != last_worker; ++worker) {
      const i32 w = *worker;
      i64 load = loads[w];
      if (load > most) continue;  // sorting is by buckets: the next may be a little less loaded
      const i64 goal = level - ((level - load + 7) >> 3);
      do {
        i32 count = 1;
        const i64 all = load + cost * left;
        if (all <= goal) {
          count = left;
          load = all;
        } else {
          for (load += cost; load + cost <= goal; load += cost) ++count;
        }
        *out++ = {{*run, per_run - left, count}, w};
        left -= count;
        if (left > 0) continue;
        if (++run == end) break;
        left = per_run;
        cost = cost_of[*run];
        most = level - ((cost + 1) >> 1);
      } while (load + cost <= goal);
      loads[w] = load;
      if (run == end) break;
    }
    const bool any = out != out_;
    next_ = {run, left};
    out_ = out;
    return any;
  }

  /// One item each, to workers at or below the average of what is assigned so far. The least
  /// loaded always is.
  void top_up_round() {
    i64 assigned = 0;
    for (i32 w = 0; w < job_.num_workers; ++w) assigned += scratch_.loads[w];
    const i64 average = assigned / job_.num_workers;
    for (i32 k = 0; k < job_.num_workers && !done(); ++k) {
      const i32 w = scratch_.workers[k];
      if (scratch_.loads[w] > average) continue;
      scratch_.loads[w] += job_.cost[*next_.run];
      *out_++ = {{*next_.run, job_.run_items - next_.left, 1}, w};
      if (--next_.left > 0) continue;
      ++next_.run;
      next_.left = job_.run_items;
    }
  }

  const AssignJob& job_;
  const AssignScratch& scratch_;
  Next next_;
  const i32* end_;  // of the runs
  i64 level_;
  int shift_;
  std::uint8_t least_ = 0;  // sort key of the least loaded; loads only grow
  Assigned* out_;
};

}  // namespace

AssignResult assign(const AssignJob& job, const AssignScratch& scratch, Assigned* out) {
  AssignResult result;
  if (job.num_runs == 0) return result;
  result.num_items = i64{job.num_runs} * job.run_items;
  result.total_load = job.sum.total * job.run_items;
  result.largest_item = job.sum.largest;
  for (i32 w = 0; w < job.num_workers; ++w) scratch.loads[w] = 0;
  Assigned* end = out;
  if (!job.balance) {
    end = round_robin(job, scratch.loads, out);
  } else if (job.sum.smallest == job.sum.largest) {
    end = equal_items(job, scratch.loads, out);
    result.by_worker = true;
  } else {
    // Longest first.
    sort_by_ten_bits(
        {job.runs, static_cast<std::size_t>(job.num_runs)}, scratch.order, scratch.run_keys,
        scratch.half_sorted,
        [cost = job.cost, shift = sort_shift(job.sum.largest, kItemBits)](i32 run) {
          return static_cast<std::uint16_t>((1 << kItemBits) - 1 - (cost[run] >> shift));
        });
    end = Rounds(job, scratch, result.total_load, out).run();
  }
  for (i32 w = 0; w < job.num_workers; ++w) {
    result.largest_load = std::max(result.largest_load, scratch.loads[w]);
  }
  result.num_assigned = static_cast<i32>(end - out);
  return result;
}

}  // namespace plait::planning
