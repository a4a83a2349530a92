// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/assign.h"

#include <utility>

namespace plait::planning {
namespace {

/// Min-heap of workers by (load, worker).
class WorkerHeap {
 public:
  WorkerHeap(i64* loads, i32* heap, i32 size) : loads_(loads), heap_(heap), size_(size) {
    for (i32 w = 0; w < size; ++w) heap_[w] = w;
    for (i32 i = size / 2; i-- > 0;) sift_down(i);
  }
  i32 top() const { return heap_[0]; }
  void add_to_top(i64 cost) {
    loads_[heap_[0]] += cost;
    sift_down(0);
  }

 private:
  bool less(i32 a, i32 b) const {
    return loads_[a] < loads_[b] || (loads_[a] == loads_[b] && a < b);
  }
  void sift_down(i32 i) {
    const i32 worker = heap_[i];
    while (true) {
      i32 child = 2 * i + 1;
      if (child >= size_) break;
      if (child + 1 < size_ && less(heap_[child + 1], heap_[child])) ++child;
      if (!less(heap_[child], worker)) break;
      heap_[i] = heap_[child];
      i = child;
    }
    heap_[i] = worker;
  }

  i64* loads_;
  i32* heap_;
  i32 size_;
};

}  // namespace

AssignResult assign(const AssignJob& job, const AssignScratch& scratch, Assigned* out) {
  AssignResult result;
  for (i32 i = 0; i < job.num_runs; ++i) {
    const i32 run = job.runs[i];
    scratch.order[i] = run;
    result.num_items += job.count[run];
    result.total_load += job.cost[run] * job.count[run];
    result.largest_item = std::max(result.largest_item, job.cost[run]);
  }
  for (i32 w = 0; w < job.num_workers; ++w) scratch.loads[w] = 0;
  Assigned* next = out;
  if (!job.balance) {
    i64 item = 0;
    for (i32 i = 0; i < job.num_runs; ++i) {
      const i32 run = job.runs[i];
      for (i32 k = 0; k < job.count[run]; ++k, ++item) {
        const i32 worker = static_cast<i32>(item % job.num_workers);
        *next++ = {worker, run, k, 1};
        scratch.loads[worker] += job.cost[run];
      }
    }
  } else {
    std::sort(scratch.order, scratch.order + job.num_runs, [&](i32 a, i32 b) {
      return job.cost[a] > job.cost[b] || (job.cost[a] == job.cost[b] && a < b);
    });
    WorkerHeap heap(scratch.loads, scratch.heap, job.num_workers);
    for (i32 i = 0; i < job.num_runs; ++i) {
      const i32 run = scratch.order[i];
      for (i32 k = 0; k < job.count[run]; ++k) {
        *next++ = {heap.top(), run, k, 1};
        heap.add_to_top(job.cost[run]);
      }
    }
  }
  for (i32 w = 0; w < job.num_workers; ++w) {
    result.largest_load = std::max(result.largest_load, scratch.loads[w]);
  }
  result.num_assigned = static_cast<i32>(next - out);
  return result;
}

}  // namespace plait::planning
