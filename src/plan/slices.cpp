// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/slices.h"

namespace plait::planning {
namespace {

using device::Slice;

/// The list of one class while it is written; in locals, which what is written cannot change.
class Lists {
 public:
  Lists(BlobWriter& blob, device::ClassHeader& header) : blob_(blob), header_(header) {
    header.worker_offset = blob.open<i32>(i64{header.num_workers} + 1);
  }

  void write_none() { std::fill_n(indptr(), header_.num_workers + 1, 0); }

  /// Items that lie in order of workers.
  void write_sorted(const Assigned* begin, const Assigned* end) {
    Slice* slice = open(end - begin);
    Slice* const first = slice;
    i32* const workers = indptr();
    i32 worker = 0;  // up to which workers[] is written
    workers[0] = 0;
    for (const Assigned* a = begin; a != end; ++a, ++slice) {
      while (worker < a->worker) workers[++worker] = static_cast<i32>(slice - first);
      *slice = a->slice;
    }
    while (worker < header_.num_workers) workers[++worker] = static_cast<i32>(slice - first);
  }

  /// Items in any order, of runs that `wanted` accepts.
  template <class Wanted>
  void write(const Assigned* begin, const Assigned* end, i32* next, Wanted wanted) {
    i32* const workers = indptr();
    const i32 num_workers = header_.num_workers;
    std::fill_n(next, num_workers, 0);
    for (const Assigned* a = begin; a != end; ++a) {
      if (wanted(a->slice.run)) ++next[a->worker];
    }
    i32 count = 0;
    for (i32 w = 0; w < num_workers; ++w) {
      workers[w] = count;
      count += next[w];
      next[w] = workers[w];
    }
    workers[num_workers] = count;
    Slice* const slices = open(count);
    for (const Assigned* a = begin; a != end; ++a) {
      if (wanted(a->slice.run)) slices[next[a->worker]++] = a->slice;
    }
  }

  /// `heads_each` items for each worker of a run's team. Teams of later runs are later ones.
  void write_teams(const i32* runs, i32 num_runs, const i32* team_of, i32 team, i32 heads_each) {
    Slice* slice = open(i64{num_runs} * team);
    Slice* const first = slice;
    i32* const workers = indptr();
    i32 worker = 0;
    for (i32 begin = 0; begin < num_runs;) {
      const i32 of = team_of[runs[begin]];
      i32 end = begin + 1;
      while (end < num_runs && team_of[runs[end]] == of) ++end;
      while (worker <= of * team) workers[worker++] = static_cast<i32>(slice - first);
      for (i32 w = 0; w < team; ++w) {
        for (i32 r = begin; r < end; ++r) *slice++ = {runs[r], w * heads_each, heads_each};
        workers[worker++] = static_cast<i32>(slice - first);
      }
      begin = end;
    }
    while (worker <= header_.num_workers) workers[worker++] = static_cast<i32>(slice - first);
  }

 private:
  i32* indptr() const { return blob_.at<i32>(header_.worker_offset); }
  Slice* open(i64 count) {
    header_.num_slices = static_cast<i32>(count);
    header_.slice_offset = blob_.open<Slice>(count);
    return blob_.at<Slice>(header_.slice_offset);
  }

  BlobWriter& blob_;
  device::ClassHeader& header_;
};

}  // namespace

void write_slices(const GroupFacts& group, const WorkerPlan& plan, const Scratch& scratch,
                  BlobWriter& blob, device::GroupHeader& header) {
  header.num_classes = group.num_classes;
  for (std::size_t c = 0; c < static_cast<std::size_t>(group.num_classes); ++c) {
    device::ClassHeader& out = header.classes[c];
    out.q_tile = group.classes[c].q_tile;
    out.kv_tile = group.classes[c].kv_tile;
    out.num_workers = plan.classes[c].num_workers;
    Lists lists(blob, out);
    const Assigned* const begin = scratch.assigned + plan.class_begin[c];
    const Assigned* const end = scratch.assigned + plan.class_end[c];
    if (plan.classes[c].num_items == 0) {
      lists.write_none();
      out.slice_offset = blob.open<Slice>(0);
    } else if (plan.team > 0) {
      const i32 runs = static_cast<i32>(plan.classes[c].num_items / (plan.team * plan.heads_each));
      list_runs(scratch, plan.num_runs, runs, c);
      lists.write_teams(scratch.class_runs, runs, scratch.run_team, plan.team, plan.heads_each);
    } else if (plan.mixed) {
      lists.write(begin, end, scratch.workers,
                  [&](i32 run) { return scratch.run_class[run] == c; });
    } else if (plan.by_worker[c]) {
      lists.write_sorted(begin, end);
    } else {
      lists.write(begin, end, scratch.workers, [](i32) { return true; });
    }
  }
}

}  // namespace plait::planning
