// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/merges.h"

namespace plait::planning {
namespace {

/// Visits the intervals of fused rows whose list of contributing tasks is constant, in row order.
template <class Visit>
void sweep(const TaskList& list, const i32* begin, std::size_t views, Visit visit) {
  std::array<i32, kMaxViews> cursor{};
  for (std::size_t v = 0; v < views; ++v) cursor[v] = begin[v];
  i32 x = 0;
  while (true) {
    std::array<Task*, kMaxViews> active{};
    std::size_t count = 0;
    i64 next = INT64_MAX;
    for (std::size_t v = 0; v < views; ++v) {
      while (cursor[v] < begin[v + 1]) {
        Task& t = list.tasks[cursor[v]];
        if (t.fused_begin + t.num_fused > x) break;
        ++cursor[v];
      }
      if (cursor[v] == begin[v + 1]) continue;
      Task& t = list.tasks[cursor[v]];
      if (t.fused_begin <= x) {
        active[count++] = &t;
        next = std::min<i64>(next, i64{t.fused_begin} + t.num_fused);
      } else {
        next = std::min<i64>(next, t.fused_begin);
      }
    }
    if (next == INT64_MAX) return;
    if (count > 0 && !active[0]->whole()) {
      visit(x, static_cast<i32>(next), active.data(), count);
    }
    x = static_cast<i32>(next);
  }
}

/// The same of one view, whose tasks never share a row.
template <class Visit>
void visit_tasks(const TaskList& list, const i32* begin, Visit visit) {
  for (i32 i = begin[0]; i < begin[1]; ++i) {
    Task* const task = list.tasks + i;
    if (task->whole()) continue;
    visit(task->fused_begin, task->fused_begin + task->num_fused, &task, std::size_t{1});
  }
}

/// All merges: visit(domain, first fused row, end, tasks, their number).
template <class Visit>
void visit_merges(const BatchFacts& batch, const TaskList& list, Visit visit) {
  const std::size_t views = batch.num_views();
  for (i32 domain = 0; domain < batch.num_domains; ++domain) {
    const i32* const begin = list.domain_views(domain, views);
    const auto of_domain = [&](i32 first, i32 end, Task* const* tasks, std::size_t count) {
      visit(domain, first, end, tasks, count);
    };
    if (views == 1) {
      visit_tasks(list, begin, of_domain);
    } else {
      sweep(list, begin, views, of_domain);
    }
  }
}

}  // namespace

MergeSection write_merges(const BatchFacts& batch, TaskList& list, const RunSection& runs,
                          BlobWriter& blob) {
  MergeSection section;
  const bool any = runs.partial_states > 0;
  i64 merges = 0;
  i64 refs = 0;
  if (any) {
    visit_merges(batch, list, [&](i32, i32, i32, Task* const* tasks, std::size_t count) {
      ++merges;
      for (std::size_t i = 0; i < count; ++i) refs += tasks[i]->num_chunks;
    });
  }
  section.num_merges = static_cast<i32>(merges);
  section.num_refs = static_cast<i32>(refs);
  section.num_counters = static_cast<i32>(merges * batch.domain_heads);
  section.merge_offset = blob.open<device::Merge>(merges);
  section.ref_offset = blob.open<device::StateRef>(refs);
  if (!any) return section;
  device::Merge* const merge = blob.at<device::Merge>(section.merge_offset);
  device::StateRef* const ref = blob.at<device::StateRef>(section.ref_offset);
  device::Run* const run = blob.at<device::Run>(runs.run_offset);
  i32 m = 0;
  i32 r = 0;
  visit_merges(batch, list,
               [&](i32 domain, i32 begin, i32 end, Task* const* tasks, std::size_t count) {
                 device::Merge& out = merge[m];
                 out.fused_row_begin = begin;
                 out.num_fused_rows = end - begin;
                 out.head_begin = domain * batch.domain_heads;
                 out.head_count = batch.domain_heads;
                 out.ref_begin = r;
                 out.counter_begin = m * batch.domain_heads;
                 out.reserved = 0;
                 for (std::size_t i = 0; i < count; ++i) {
                   Task& task = *tasks[i];
                   for (i32 c = 0; c < task.num_chunks; ++c) {
                     device::Run& from = run[task.first_run + c];
                     if (from.num_merges == 0) from.merge_begin = m;
                     ++from.num_merges;
                     ref[r++] = {from.state_begin + (begin - task.fused_begin), task.num_fused};
                   }
                 }
                 out.num_refs = r - out.ref_begin;
                 const i64 work = out.num_fused_rows * (kRowInStates + out.num_refs);
                 section.total_arrivals += work * batch.domain_heads;
                 for (std::size_t i = 0; i < count; ++i) {
                   tasks[i]->merged += work;
                   section.largest_arrival = std::max(section.largest_arrival, tasks[i]->merged);
                 }
                 ++m;
               });
  return section;
}

}  // namespace plait::planning
