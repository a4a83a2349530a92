// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/assign.h"

#include <bit>

namespace plait::planning {
namespace {

/// Stable counting sort of id(0) .. id(count - 1) by bucket(id) in [0, Buckets).
template <i32 Buckets, class Id, class Bucket>
void counting_sort(i32 count, i32* out, i32* buckets, Id id, Bucket bucket) {
  for (i32 b = 0; b < Buckets; ++b) buckets[b] = 0;
  i32 first = Buckets - 1;  // bucket in use
  i32 last = 0;
  for (i32 i = 0; i < count; ++i) {
    const i32 b = bucket(id(i));
    ++buckets[b];
    first = std::min(first, b);
    last = std::max(last, b);
  }
  i32 sum = 0;
  for (i32 b = first; b <= last; ++b) {
    const i32 size = buckets[b];
    buckets[b] = sum;
    sum += size;
  }
  for (i32 i = 0; i < count; ++i) out[buckets[bucket(id(i))]++] = id(i);
}

/// Shift that brings `largest` below 2^bucket_bits.
int sort_shift(i64 largest, int bucket_bits) {
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(largest)));
  return std::max(0, bits - bucket_bits);
}
constexpr int kItemBits = 10;
constexpr int kWorkerBits = 8;  // fewer workers than runs, and sorted more often
static_assert(kSortBuckets == 1 << kItemBits);

/// The runs as one long list of items, longest first. Copied into locals while a round takes from
/// it.
class Items {
 public:
  Items(const AssignJob& job, const i32* order)
      : cost_of_(job.cost), order_(order), end_(order + job.num_runs), per_run_(job.run_items) {
    load();
  }
  bool done() const { return order_ == end_; }
  i64 cost() const { return cost_; }
  i32 left_in_run() const { return per_run_ - first_; }
  Assigned take(i32 worker, i32 count) {
    const Assigned part{worker, *order_, first_, count};
    first_ += count;
    if (first_ == per_run_) {
      ++order_;
      first_ = 0;
      load();
    }
    return part;
  }

 private:
  void load() {
    if (!done()) cost_ = cost_of_[*order_];
  }
  const i64* cost_of_;
  const i32* order_;  // the run that items are taken from
  const i32* end_;
  i32 per_run_;
  i32 first_ = 0;
  i64 cost_ = 0;
};

Assigned* round_robin(const AssignJob& job, i64* loads, Assigned* out) {
  i32 worker = 0;
  for (i32 i = 0; i < job.num_runs; ++i) {
    const i32 run = job.runs[i];
    for (i32 k = 0; k < job.run_items; ++k) {
      *out++ = {worker, run, k, 1};
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
      *out++ = {w, job.runs[run], first, count};
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
  Rounds(const AssignJob& job, const AssignScratch& scratch, i64 total, i64 largest, Assigned* out)
      : job_(job),
        scratch_(scratch),
        items_(job, scratch.order),
        level_(total / job.num_workers),
        // Loads never pass level + largest item.
        shift_(sort_shift(level_ + largest, kWorkerBits)),
        out_(out) {
    for (i32 w = 0; w < job.num_workers; ++w) scratch_.workers[w] = w;
  }

  /// Every item goes to a worker whose load before it is at most (T - c) / C, T the total and c
  /// the item: that alone proves the bound. Least loaded workers take the longest items.
  Assigned* run() {
    // While workers can take half of an item below the level they are filled towards it, in
    // rounds: each takes items for seven eighths of what it lacks, at least one.
    bool sorted = true;  // all loads are zero
    while (!items_.done()) {
      if (!sorted) sort_workers();
      sorted = false;
      if (!fill_round()) break;
    }
    while (!items_.done()) {
      sort_workers();
      top_up_round();
    }
    return out_;
  }

 private:
  void sort_workers() {
    // Stable from worker order, so that ties go to the lowest id. Loads differ little after a
    // round.
    counting_sort<1 << kWorkerBits>(
        job_.num_workers, scratch_.workers, scratch_.buckets, [](i32 w) { return w; },
        [loads = scratch_.loads, shift = shift_](i32 w) {
          return static_cast<i32>(std::min<i64>(loads[w] >> shift, (1 << kWorkerBits) - 1));
        });
  }

  bool fill_round() {
    bool any = false;
    Items items = items_;
    Assigned* out = out_;
    i64* const loads = scratch_.loads;
    const i64 level = level_;
    const i32* const end = scratch_.workers + job_.num_workers;
    for (const i32* worker = scratch_.workers; worker != end && !items.done(); ++worker) {
      const i32 w = *worker;
      i64 load = loads[w];
      i64 cost = items.cost();
      // For C >= 2 this is at most (T - c) / C. Sorting is by buckets: the next worker may be a
      // little less loaded.
      if (load + (cost + 1) / 2 > level) continue;
      any = true;
      const i64 goal = load + (level - load) * 7 / 8;
      do {
        i32 count = 1;
        const i32 left = items.left_in_run();
        if (load + cost * left <= goal) {
          count = left;
        } else {
          while (count < left && load + cost * (count + 1) <= goal) ++count;
        }
        load += cost * count;
        *out++ = items.take(w, count);
        if (items.done()) break;
        cost = items.cost();
      } while (load + cost <= goal);
      loads[w] = load;
    }
    items_ = items;
    out_ = out;
    return any;
  }

  /// One item each, to workers at or below the average of what is assigned so far. The least
  /// loaded always is.
  void top_up_round() {
    i64 assigned = 0;
    for (i32 w = 0; w < job_.num_workers; ++w) assigned += scratch_.loads[w];
    const i64 average = assigned / job_.num_workers;
    for (i32 k = 0; k < job_.num_workers && !items_.done(); ++k) {
      const i32 w = scratch_.workers[k];
      if (scratch_.loads[w] > average) continue;
      scratch_.loads[w] += items_.cost();
      *out_++ = items_.take(w, 1);
    }
  }

  const AssignJob& job_;
  const AssignScratch& scratch_;
  Items items_;
  i64 level_;
  int shift_;
  Assigned* out_;
};

}  // namespace

AssignResult assign(const AssignJob& job, const AssignScratch& scratch, Assigned* out) {
  AssignResult result;
  if (job.num_runs == 0) return result;
  i64 total = 0;
  i64 largest = 0;
  i64 smallest = INT64_MAX;
  for (i32 i = 0; i < job.num_runs; ++i) {
    const i64 cost = job.cost[job.runs[i]];
    total += cost;
    largest = std::max(largest, cost);
    smallest = std::min(smallest, cost);
  }
  result.num_items = i64{job.num_runs} * job.run_items;
  result.total_load = total * job.run_items;
  result.largest_item = largest;
  for (i32 w = 0; w < job.num_workers; ++w) scratch.loads[w] = 0;
  Assigned* end = out;
  if (!job.balance) {
    end = round_robin(job, scratch.loads, out);
  } else if (smallest == largest) {
    end = equal_items(job, scratch.loads, out);
  } else {
    const int shift = sort_shift(largest, kItemBits);
    counting_sort<kSortBuckets>(
        job.num_runs, scratch.order, scratch.buckets, [runs = job.runs](i32 i) { return runs[i]; },
        [cost = job.cost, shift](i32 run) {
          return kSortBuckets - 1 - static_cast<i32>(cost[run] >> shift);  // longest first
        });
    end = Rounds(job, scratch, result.total_load, largest, out).run();
  }
  for (i32 w = 0; w < job.num_workers; ++w) {
    result.largest_load = std::max(result.largest_load, scratch.loads[w]);
  }
  result.num_assigned = static_cast<i32>(end - out);
  return result;
}

}  // namespace plait::planning
