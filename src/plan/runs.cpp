// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/runs.h"

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

}  // namespace

RunCosts cost_runs(const GroupFacts& group, const TaskList& list, Scratch& scratch) {
  // In locals, which what is written cannot change.
  i64* const cost_of = scratch.run_cost;
  std::uint8_t* const class_of = scratch.run_class;
  const Task* const end = list.tasks + list.count;
  RunCosts costs;
  i32 run = 0;
  for (const Task* task = list.tasks; task != end;) {
    // As long as the class stays the same.
    const std::uint8_t tile_class = task->tile_class;
    const TileClass& tile = group.classes[tile_class];
    const i32 first = run;
    ClassCosts sum = costs.classes[tile_class];
    const auto add = [&](i64 cost) {
      cost_of[run] = cost;
      class_of[run] = tile_class;
      sum.add(cost);
      ++run;
    };
    for (; task != end && task->tile_class == tile_class; ++task) {
      if (task->whole()) {
        add(task->cost);
        continue;
      }
      for (i32 c = 0; c < task->num_chunks; ++c) {
        const Range range = chunk_range(group, *task, scratch.cuts, c);
        add(item_cost(tile, range.end - range.begin, task->num_fused));
      }
    }
    sum.runs += run - first;
    costs.classes[tile_class] = sum;
  }
  costs.count = run;
  return costs;
}

namespace {

class RunWriter {
 public:
  RunWriter(const GroupFacts& group, const BatchFacts& batch, const Scratch& scratch,
            device::Run* runs, device::Piece* pieces)
      : group_(group), batch_(batch), scratch_(scratch), runs_(runs), pieces_(pieces) {}

  i32 num_pieces() const { return num_pieces_; }
  i64 state_rows() const { return state_rows_; }
  i64 partial_states() const { return partial_states_; }

  /// Writes whole tasks up to the first that is not, and returns that.
  Task* write_whole(Task* task, const Task* end) {
    const i32 heads = batch_.domain_heads;
    device::Run* run = runs_ + num_runs_;
    device::Piece* piece = pieces_ + num_pieces_;
    for (; task != end && task->whole(); ++task, ++run) {
      const bool any = task->kv_begin < task->kv_end;
      *run = {task->fused_begin,
              task->num_fused,
              task->head,
              heads,
              static_cast<i32>(piece - pieces_),
              any ? 1 : 0,
              -1,
              0,
              0,
              saturate(task->cost),
              {0, 0}};
      *piece = {task->block, task->kv_begin, task->kv_end, task->full_begin, task->full_end};
      piece += any ? 1 : 0;
    }
    num_runs_ = static_cast<i32>(run - runs_);
    num_pieces_ = static_cast<i32>(piece - pieces_);
    return task;
  }

  void write_items(Task& task) {
    task.first_run = num_runs_;
    task.merged = 0;
    const bool state = !task.whole();
    for (i32 c = 0; c < task.num_chunks; ++c) {
      const Range range = chunk_range(group_, task, scratch_.cuts, c);
      const i32 pieces = range.begin < range.end ? write_pieces(task, range) : 0;
      runs_[num_runs_] = {task.fused_begin,
                          task.num_fused,
                          task.head,
                          batch_.domain_heads,
                          num_pieces_,
                          pieces,
                          state ? static_cast<i32>(state_rows_) : -1,
                          0,
                          0,
                          saturate(scratch_.run_cost[num_runs_]),
                          {0, 0}};
      ++num_runs_;
      num_pieces_ += pieces;
      if (!state) continue;
      state_rows_ += i64{task.num_fused} * batch_.domain_heads;
      partial_states_ += batch_.domain_heads;
    }
  }

 private:
  i32 write_pieces(const Task& task, Range range) {
    device::Piece* const pieces = pieces_ + num_pieces_;
    if (group_.canonical()) return canonical_pieces(batch_, task, range, pieces);
    *pieces = make_piece(task.block, range.begin, range.end, task.full_begin, task.full_end);
    return 1;
  }

  const GroupFacts& group_;
  const BatchFacts& batch_;
  const Scratch& scratch_;
  device::Run* runs_;
  device::Piece* pieces_;
  i32 num_runs_ = 0;
  i32 num_pieces_ = 0;
  i64 state_rows_ = 0;
  i64 partial_states_ = 0;
};

}  // namespace

RunSection write_runs(const GroupFacts& group, const BatchFacts& batch, TaskList& list,
                      i32 num_runs, BlobWriter& blob, Scratch& scratch) {
  RunSection section;
  const i64 most_pieces = num_runs * (group.canonical() ? static_cast<i64>(batch.num_views()) : 1);
  section.num_runs = num_runs;
  section.num_items = i64{num_runs} * batch.domain_heads;
  section.run_offset = blob.open<device::Run>(num_runs);
  section.piece_offset = blob.open<device::Piece>(most_pieces);
  device::Piece* const pieces = blob.at<device::Piece>(section.piece_offset);
  RunWriter writer(group, batch, scratch, blob.at<device::Run>(section.run_offset), pieces);
  Task* const end = list.tasks + list.count;
  for (Task* task = list.tasks; task != end;) {
    if (!group.canonical()) task = writer.write_whole(task, end);
    if (task != end) writer.write_items(*task++);
  }
  // Canonical items rarely have a piece in every view: zero what was opened and not used.
  for (i64 p = writer.num_pieces(); p < most_pieces; ++p) pieces[p] = device::Piece{};
  section.num_pieces = writer.num_pieces();
  section.state_rows = writer.state_rows();
  section.partial_states = writer.partial_states();
  return section;
}

}  // namespace plait::planning
