// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/blob.h"

#include <string>

#include "plait/error.h"

namespace plait::planning {
namespace {

/// Slots [begin, end) of a row block, all seen from full_begin to full_end.
device::Piece make_piece(i32 record, i64 begin, i64 end, i64 full_begin, i64 full_end) {
  full_begin = std::max(begin, full_begin);
  full_end = std::min(end, full_end);
  if (full_begin >= full_end) full_begin = full_end = begin;
  return {record, static_cast<i32>(begin), static_cast<i32>(end), static_cast<i32>(full_begin),
          static_cast<i32>(full_end)};
}

/// Pieces of a canonical item, outermost view first.
i32 canonical_pieces(const BatchFacts& batch, const Task& task, Range range,
                     device::Piece* pieces) {
  std::array<i32, kMaxViews> chain{};
  const i32 domain = task.head / batch.domain_heads;
  i32 record = task.block;
  std::size_t depth = 0;
  while (true) {
    chain[depth++] = record;
    const i32 view = batch.blocks[record].view;
    const i32 parent = batch.parents[record];
    if (view == 0 || parent < 0) break;
    record = batch.record(static_cast<std::size_t>(view) - 1, parent, domain);
  }
  i32 count = 0;
  while (depth-- > 0) {
    const RowBlock& block = batch.blocks[chain[depth]];
    const i64 base = block.segment_base;
    const i64 begin = std::max<i64>(range.begin - base, 0);
    const i64 end = std::min<i64>(range.end - base, block.num_slots);
    if (begin >= end) continue;
    pieces[count++] =
        make_piece(chain[depth], begin, end, task.full_begin - base, task.full_end - base);
  }
  return count;
}

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
    if (count > 0 && (active[0]->needs_state != 0 || active[0]->num_chunks > 1)) {
      visit(x, static_cast<i32>(next), active.data(), count);
    }
    x = static_cast<i32>(next);
  }
}

}  // namespace

void BlobWriter::overflow(i64 need) const {
  throw Error(ErrorCode::kInternal, "plan words", std::to_string(need),
              "at most the proven bound, " + std::to_string(capacity_));
}

i32 cost_runs(const GroupFacts& group, const TaskList& list, Scratch& scratch) {
  i32 runs = 0;
  for (i32 i = 0; i < list.count; ++i) {
    const Task& task = list.tasks[i];
    const auto add = [&](i64 cost) {
      scratch.run_cost[runs] = cost;
      scratch.run_class[runs] = static_cast<std::uint8_t>(task.tile_class);
      ++runs;
    };
    // Nearly all: what a whole task costs is known.
    if (task.num_chunks == 1 && task.needs_state == 0) {
      add(task.cost);
      continue;
    }
    const TileClass& tile = group.classes[static_cast<std::size_t>(task.tile_class)];
    for (i32 c = 0; c < task.num_chunks; ++c) {
      const Range range = chunk_range(group, task, scratch.cuts, c);
      add(item_cost(tile, range.end - range.begin, task.num_fused));
    }
  }
  return runs;
}

RunSection write_runs(const GroupFacts& group, const BatchFacts& batch, TaskList& list,
                      i32 num_runs, BlobWriter& blob, Scratch& scratch) {
  RunSection section;
  const i64 most_pieces = num_runs * (group.canonical() ? static_cast<i64>(batch.num_views()) : 1);
  section.num_runs = num_runs;
  section.num_items = i64{num_runs} * batch.domain_heads;
  section.run_offset = blob.open<device::Run>(num_runs);
  section.piece_offset = blob.open<device::Piece>(most_pieces);
  device::Run* run = blob.at<device::Run>(section.run_offset);
  device::Piece* const pieces = blob.at<device::Piece>(section.piece_offset);
  const i32 heads = batch.domain_heads;
  i32 index = 0;
  i32 num_pieces = 0;
  i64 state_row = 0;
  const auto add = [&](const Task& task, i32 pieces_of_item, i32 state_begin) {
    run[index] = {task.fused_begin,
                  task.num_fused,
                  task.head,
                  heads,
                  num_pieces,
                  pieces_of_item,
                  state_begin,
                  0,
                  0,
                  saturate(scratch.run_cost[index]),
                  {0, 0}};
    num_pieces += pieces_of_item;
    ++index;
  };
  for (i32 i = 0; i < list.count; ++i) {
    Task& task = list.tasks[i];
    task.first_run = index;
    task.merged = 0;
    const bool state = task.needs_state != 0 || task.num_chunks > 1;
    if (!state && !group.canonical()) {  // nearly all
      pieces[num_pieces] =
          make_piece(task.block, task.kv_begin, task.kv_end, task.full_begin, task.full_end);
      add(task, task.kv_begin < task.kv_end ? 1 : 0, -1);
      continue;
    }
    for (i32 c = 0; c < task.num_chunks; ++c) {
      const Range range = chunk_range(group, task, scratch.cuts, c);
      i32 count = 0;
      if (group.canonical()) {
        count =
            range.begin < range.end ? canonical_pieces(batch, task, range, pieces + num_pieces) : 0;
      } else if (range.begin < range.end) {
        pieces[num_pieces] =
            make_piece(task.block, range.begin, range.end, task.full_begin, task.full_end);
        count = 1;
      }
      add(task, count, state ? static_cast<i32>(state_row) : -1);
      if (!state) continue;
      state_row += i64{task.num_fused} * heads;
      section.partial_states += heads;
    }
  }
  // Canonical items rarely have a piece in every view: zero what was opened and not used.
  for (i64 p = num_pieces; p < most_pieces; ++p) pieces[p] = device::Piece{};
  section.num_pieces = num_pieces;
  section.state_rows = state_row;
  return section;
}

MergeSection write_merges(const BatchFacts& batch, TaskList& list, const RunSection& runs,
                          BlobWriter& blob) {
  MergeSection section;
  const std::size_t views = batch.num_views();
  i64 merges = 0;
  i64 refs = 0;
  const i32 domains = runs.partial_states > 0 ? batch.num_domains : 0;
  for (i32 domain = 0; domain < domains; ++domain) {
    sweep(list, list.domain_views(domain, views), views,
          [&](i32, i32, Task* const* tasks, std::size_t count) {
            ++merges;
            for (std::size_t i = 0; i < count; ++i) refs += tasks[i]->num_chunks;
          });
  }
  section.num_merges = static_cast<i32>(merges);
  section.num_refs = static_cast<i32>(refs);
  section.num_counters = static_cast<i32>(merges * batch.domain_heads);
  section.merge_offset = blob.open<device::Merge>(merges);
  section.ref_offset = blob.open<device::StateRef>(refs);
  device::Merge* const merge = blob.at<device::Merge>(section.merge_offset);
  device::StateRef* const ref = blob.at<device::StateRef>(section.ref_offset);
  device::Run* const run = blob.at<device::Run>(runs.run_offset);
  i32 m = 0;
  i32 r = 0;
  for (i32 domain = 0; domain < domains; ++domain) {
    sweep(list, list.domain_views(domain, views), views,
          [&](i32 begin, i32 end, Task* const* tasks, std::size_t count) {
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
  }
  return section;
}

}  // namespace plait::planning
