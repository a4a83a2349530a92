// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Partial states: each row written by one item and merged once, in order.
#include <string>
#include <utility>
#include <vector>

#include "plan/verify_group.h"

namespace plait::verification {

using device::Merge;
using device::Piece;
using device::Run;
using device::StateRef;

/// Which item a state row belongs to: a row of a run, for one head.
struct GroupVerifier::StateOwner {
  i32 run = -1;
  i32 head = 0;
  i32 fused = 0;
  bool merged = false;
};

/// Every state row belongs to one item and is merged once, in order, by merges its run names.
void GroupVerifier::check_states() const {
  std::vector<StateOwner> owners(static_cast<std::size_t>(header_.num_state_rows));
  for (std::size_t r = 0; r < runs_.size(); ++r) claim_states(r, owners);
  std::vector<char> counter(static_cast<std::size_t>(header_.num_counters), 0);
  for (std::size_t m = 0; m < merges_.size(); ++m) check_merge(m, owners, counter);
  for (std::size_t row = 0; row < owners.size(); ++row) {
    require(owners[row].run < 0 || owners[row].merged, "state row", static_cast<i64>(row),
            "to be merged");
  }
  for (std::size_t r = 0; r < runs_.size(); ++r) check_merge_range(runs_[r], r);
}

void GroupVerifier::claim_states(std::size_t index, std::vector<StateOwner>& owners) const {
  const Run& run = runs_[index];
  if (run.state_begin < 0) {
    require(run.state_begin == -1 && run.num_merges == 0, nth("run ", static_cast<i64>(index)),
            run.num_merges, "no merges for an item that writes the output");
    return;
  }
  const std::string name = nth("states of run ", static_cast<i64>(index));
  require(i64{run.state_begin} + i64{run.num_fused_rows} * run.head_count <= header_.num_state_rows,
          name, run.state_begin, "rows of the buffer");
  auto row = static_cast<std::size_t>(run.state_begin);
  for (i32 h = 0; h < run.head_count; ++h) {
    for (i32 i = 0; i < run.num_fused_rows; ++i, ++row) {
      require(owners[row].run < 0, name, run.state_begin, "rows of its own");
      owners[row] = {static_cast<i32>(index), run.head_begin + h, run.fused_row_begin + i, false};
    }
  }
}

void GroupVerifier::check_merge(std::size_t index, std::vector<StateOwner>& owners,
                                std::vector<char>& counter) const {
  const Merge& merge = merges_[index];
  const auto m = static_cast<i64>(index);
  const std::string name = nth("merge ", m);
  require(merge.num_refs > 0 && merge.ref_begin >= 0 &&
              i64{merge.ref_begin} + merge.num_refs <= header_.num_refs,
          name + " references", merge.ref_begin, "references of the plan");
  require(merge.head_count == merges_[0].head_count && merge.counter_begin == m * merge.head_count,
          name + " counter", merge.counter_begin, "the counters after those of merge m - 1");
  for (i32 h = 0; h < merge.head_count; ++h) {
    const i64 c = i64{merge.counter_begin} + h;
    require(c >= 0 && c < header_.num_counters && counter[static_cast<std::size_t>(c)] == 0,
            name + " counter", c, "a counter of its own");
    counter[static_cast<std::size_t>(c)] = 1;
    std::pair<i64, i64> before{-1, -1};
    for (i32 k = 0; k < merge.num_refs; ++k) {
      const StateRef& ref = refs_[static_cast<std::size_t>(merge.ref_begin + k)];
      std::pair<i64, i64> order{-1, -1};
      for (i32 i = 0; i < merge.num_fused_rows; ++i) {
        const i64 row = i64{ref.state_row} + i64{h} * ref.head_stride + i;
        require(row >= 0 && row < header_.num_state_rows, name + " state row", row,
                "a row of the buffer");
        StateOwner& o = owners[static_cast<std::size_t>(row)];
        require(o.run >= 0 && !o.merged, name + " state row", row, "a state merged once");
        o.merged = true;
        require(o.head == merge.head_begin + h && o.fused == merge.fused_row_begin + i,
                name + " state row", row, "the state of its own row and head");
        const Run& run = runs_[static_cast<std::size_t>(o.run)];
        require(m >= run.merge_begin && m < i64{run.merge_begin} + run.num_merges, name, o.run,
                "to be named by the run of each state");
        order = order_of(run);
      }
      require(order > before, name + " order", k, "states in order of their keys");
      before = order;
    }
  }
}

/// The merges that a run names are exactly those of its rows.
void GroupVerifier::check_merge_range(const Run& run, std::size_t index) const {
  if (run.state_begin < 0) return;
  require(run.merge_begin >= 0 && i64{run.merge_begin} + run.num_merges <= header_.num_merges,
          nth("merges of run ", static_cast<i64>(index)), run.merge_begin, "merges of the plan");
  i64 rows = 0;
  for (i32 m = run.merge_begin; m < run.merge_begin + run.num_merges; ++m) {
    const Merge& merge = merges_[static_cast<std::size_t>(m)];
    require(merge.fused_row_begin >= run.fused_row_begin &&
                merge.fused_row_begin + merge.num_fused_rows <=
                    run.fused_row_begin + run.num_fused_rows &&
                merge.head_begin == run.head_begin && merge.head_count == run.head_count,
            nth("merges of run ", static_cast<i64>(index)), m, "merges of its rows");
    rows += merge.num_fused_rows;
  }
  require(rows == run.num_fused_rows, nth("merges of run ", static_cast<i64>(index)), rows,
          "merges that cover its rows");
}

/// Where an item's keys begin; an item without keys comes after everything.
std::pair<i64, i64> GroupVerifier::order_of(const Run& run) const {
  if (run.num_pieces == 0) return {INT32_MAX, 0};
  const Piece& piece = pieces_[static_cast<std::size_t>(run.piece_begin)];
  return {meaning_.list(piece.block).segment_base + piece.kv_begin,
          meaning_.list(piece.block).view};
}

}  // namespace plait::verification
