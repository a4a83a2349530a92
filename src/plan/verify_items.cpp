// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Items: each on one worker, with keys of its rows and no KV tile that none of them sees.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "plan/verify_group.h"

namespace plait::verification {

using device::ClassHeader;
using device::Piece;
using device::Run;
using device::Slice;
using device::WorkerStart;

void GroupVerifier::check_assignment() {
  std::vector<std::vector<char>> given(runs_.size());
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    require(runs_[r].head_count > 0 && runs_[r].head_count <= spec_.num_kv_heads,
            nth("heads of run ", static_cast<i64>(r)), runs_[r].head_count, "KV heads of the spec");
    given[r].assign(static_cast<std::size_t>(runs_[r].head_count), 0);
  }
  run_tile_.assign(runs_.size(), 0);
  require(header_.num_classes >= 1 && header_.num_classes <= device::kMaxClasses, "classes",
          header_.num_classes, "1..4");
  for (i32 c = 0; c < header_.num_classes; ++c) {
    const ClassHeader& k = header_.classes[c];
    // What a worker past the launch's last one is given would never be computed.
    require(k.num_workers >= 0 && k.num_workers <= bounds_.workers[index_], "workers of a class",
            k.num_workers, "at most those of the group's launch");
    const auto indptr = section<i32>(k.worker_offset, k.num_workers + 1, "worker lists");
    const auto slices = section<Slice>(k.slice_offset, k.num_slices, "slices");
    require(indptr.front() == 0 && indptr.back() == k.num_slices &&
                std::is_sorted(indptr.begin(), indptr.end()),
            "worker lists of a class", indptr.back(), "all slices in order");
    for (const Slice& s : slices) {
      require(s.run >= 0 && s.run < header_.num_runs, "slice run", s.run, "a run");
      const Run& run = runs_[static_cast<std::size_t>(s.run)];
      require(s.count > 0 && s.first >= 0 && s.first + s.count <= run.head_count, "slice heads",
              s.first, "heads of its run");
      require(run.num_fused_rows <= k.q_tile, "slice rows", run.num_fused_rows,
              "at most the query tile of its class");
      run_tile_[static_cast<std::size_t>(s.run)] = k.kv_tile;
      for (i32 h = s.first; h < s.first + s.count; ++h) {
        char& seen = given[static_cast<std::size_t>(s.run)][static_cast<std::size_t>(h)];
        require(seen == 0, nth("items of run ", s.run), h, "one worker each");
        seen = 1;
      }
    }
  }
  for (std::size_t r = 0; r < given.size(); ++r) {
    for (char seen : given[r]) {
      require(seen != 0, nth("items of run ", static_cast<i64>(r)), 0, "a worker for each head");
    }
  }
}

/// Each worker's start repeats what its first slice says; after the runs were checked.
void GroupVerifier::check_starts() const {
  for (i32 c = 0; c < header_.num_classes; ++c) {
    const ClassHeader& k = header_.classes[c];
    const auto indptr = section<i32>(k.worker_offset, k.num_workers + 1, "worker lists");
    const auto slices = section<Slice>(k.slice_offset, k.num_slices, "slices");
    i64 tokens = 0;
    for (const Slice& slice : slices) {
      const Run& run = runs_[static_cast<std::size_t>(slice.run)];
      for (i32 p = run.piece_begin; p < run.piece_begin + run.num_pieces; ++p) {
        const Piece& piece = pieces_[static_cast<std::size_t>(p)];
        tokens += i64{slice.count} * (piece.kv_end - piece.kv_begin);
      }
    }
    tokens = std::min<i64>(tokens / std::max(k.num_workers, 1), INT32_MAX);
    require(k.kv_tokens == tokens, "tokens of a class", k.kv_tokens, "those of its items");
    const auto starts = section<WorkerStart>(k.start_offset, k.num_workers, "worker starts");
    require(k.start_offset % 4 == 0, "worker starts", k.start_offset, "a multiple of 16 bytes");
    for (std::size_t w = 0; w < starts.size(); ++w) {
      WorkerStart want{};
      if (indptr[w] < indptr[w + 1]) {
        const Slice& slice = slices[static_cast<std::size_t>(indptr[w])];
        const Run& run = runs_[static_cast<std::size_t>(slice.run)];
        want.first_slice = indptr[w];
        want.last_slice = indptr[w + 1];
        want.head = run.head_begin + slice.first;
        want.count = slice.count;
        if (run.num_pieces > 0) {
          const Piece& piece = pieces_[static_cast<std::size_t>(run.piece_begin)];
          const device::RowBlock& block = blocks_[static_cast<std::size_t>(piece.block)];
          want.kv_begin = piece.kv_begin;
          want.kv_end = piece.kv_end;
          want.page_begin = block.page_begin;
          want.view = block.view;
          want.request = block.request;
          want.list_end = block.num_slots;
        }
      }
      require(std::memcmp(&starts[w], &want, sizeof(want)) == 0,
              nth("start of worker ", static_cast<i64>(w)), starts[w].first_slice,
              "that of its first slice");
    }
  }
}

void GroupVerifier::check_runs() const {
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const Run& run = runs_[r];
    const std::string name = nth("run ", static_cast<i64>(r));
    require(run.num_fused_rows > 0 && run.fused_row_begin >= 0 &&
                i64{run.fused_row_begin} + run.num_fused_rows <= fused_rows_,
            name + " rows", run.fused_row_begin, "query rows of the batch");
    require(run.head_count > 0 && run.head_begin >= 0 &&
                run.head_begin + run.head_count <= spec_.num_kv_heads,
            name + " heads", run.head_begin, "KV heads of the spec");
    require(run.num_pieces >= 0 && run.piece_begin >= 0 &&
                i64{run.piece_begin} + run.num_pieces <= header_.num_pieces,
            name + " pieces", run.piece_begin, "pieces of the plan");
    for (i32 p = run.piece_begin; p < run.piece_begin + run.num_pieces; ++p) {
      check_piece(run, pieces_[static_cast<std::size_t>(p)], name);
    }
    if (run.num_pieces > 0) check_tiles(run, run_tile_[r], name);
  }
}

void GroupVerifier::check_piece(const Run& run, const Piece& piece, const std::string& name) const {
  require(piece.block >= 0 && piece.block < header_.num_blocks, name + " block", piece.block,
          "a row block");
  const BatchMeaning::List& list = meaning_.list(piece.block);
  require(piece.kv_begin >= 0 && piece.kv_begin < piece.kv_end && piece.kv_end <= list.slots,
          name + " keys", piece.kv_begin, "a non-empty range of slots");
  const i64 first = run.fused_row_begin / group_size_;
  const i64 last = (run.fused_row_begin + run.num_fused_rows - 1) / group_size_;
  require(first >= list.row_begin && last < list.row_end, name + " rows", run.fused_row_begin,
          "rows of its row block");
  require(piece.full_begin <= piece.full_end && piece.full_begin >= piece.kv_begin &&
              piece.full_end <= piece.kv_end,
          name + " full range", piece.full_begin, "a range inside the piece");
  for (i64 row = first; row <= last; ++row) {
    require(meaning_.sees_all(piece.block, row, {piece.full_begin, piece.full_end}),
            name + " full range for row " + std::to_string(row), piece.full_end,
            "keys that every row sees");
  }
}

/// No KV tile of an item is invisible to all of its rows.
void GroupVerifier::check_tiles(const Run& run, i64 tile, const std::string& name) const {
  const i64 first = run.fused_row_begin / group_size_;
  const i64 last = (run.fused_row_begin + run.num_fused_rows - 1) / group_size_;
  // Tiles as intervals of a coordinate: canonical ones are counted from 0, others from the item.
  std::map<i64, bool> seen;
  for (i32 p = run.piece_begin; p < run.piece_begin + run.num_pieces; ++p) {
    const Piece& piece = pieces_[static_cast<std::size_t>(p)];
    const i64 base =
        header_.segment_tokens > 0 ? meaning_.list(piece.block).segment_base : -i64{piece.kv_begin};
    for (i64 t = (piece.kv_begin + base) / tile; t <= (piece.kv_end - 1 + base) / tile; ++t) {
      seen.emplace(t, false);
    }
    for (i64 row = first; row <= last; ++row) {
      const SlotRange v = meaning_.visible(piece.block, row);
      const i64 begin = std::max<i64>(v.begin, piece.kv_begin);
      const i64 end = std::min<i64>(v.end, piece.kv_end);
      for (i64 t = (begin + base) / tile; begin < end && t <= (end - 1 + base) / tile; ++t) {
        seen[t] = true;
      }
    }
  }
  for (const auto& [t, visible] : seen) {
    require(visible, name + " KV tile", t, "a tile that some row of the item sees");
  }
}

}  // namespace plait::verification
