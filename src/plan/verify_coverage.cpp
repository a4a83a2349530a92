// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Keys: each query row of a head sees every visible one once, and has one writer.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/verify_group.h"

namespace plait::verification {

using device::Merge;
using device::Piece;
using device::Run;

void GroupVerifier::check_coverage(i32 head) const {
  std::vector<std::vector<Use>> uses(static_cast<std::size_t>(fused_rows_));
  std::vector<i32> writers(static_cast<std::size_t>(fused_rows_), 0);
  std::vector<i32> items(static_cast<std::size_t>(fused_rows_), 0);
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const Run& run = runs_[r];
    if (head < run.head_begin || head >= run.head_begin + run.head_count) continue;
    for (i32 f = run.fused_row_begin; f < run.fused_row_begin + run.num_fused_rows; ++f) {
      const std::size_t row = static_cast<std::size_t>(f);
      ++items[row];
      if (run.state_begin < 0) ++writers[row];
      for (i32 p = run.piece_begin; p < run.piece_begin + run.num_pieces; ++p) {
        const Piece& piece = pieces_[static_cast<std::size_t>(p)];
        uses[row].push_back({piece.block, piece.kv_begin, piece.kv_end, r});
      }
    }
  }
  std::vector<char> merged(static_cast<std::size_t>(fused_rows_), 0);
  for (const Merge& merge : merges_) {
    if (head < merge.head_begin || head >= merge.head_begin + merge.head_count) continue;
    for (i32 i = 0; i < merge.num_fused_rows; ++i) {
      char& seen = merged[static_cast<std::size_t>(merge.fused_row_begin + i)];
      require(seen == 0, nth("fused row ", merge.fused_row_begin + i), 2, "one merge");
      seen = 1;
    }
  }
  for (i64 f = 0; f < fused_rows_; ++f) {
    const std::size_t row = static_cast<std::size_t>(f);
    const std::string name = nth("fused row ", f) + " of head " + std::to_string(head);
    if (merged[row] != 0) {
      require(writers[row] == 0, name, writers[row], "a merge as its only writer");
    } else {
      require(writers[row] == 1 && items[row] == 1, name, items[row], "exactly one writer");
    }
    check_row(f, head, uses[row], name);
    if (header_.segment_tokens > 0) check_segments(f / group_size_, uses[row], name);
  }
}

/// Every visible key exactly once; no key twice, visible or not.
void GroupVerifier::check_row(i64 fused, i32 head, std::vector<Use> uses,
                              const std::string& name) const {
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
    return a.block != b.block ? a.block < b.block : a.begin < b.begin;
  });
  for (std::size_t i = 1; i < uses.size(); ++i) {
    require(uses[i].block != uses[i - 1].block || uses[i].begin >= uses[i - 1].end, name + " key",
            uses[i].begin, "no key read twice");
  }
  const i64 row = fused / group_size_;
  const std::size_t views = static_cast<std::size_t>(blocks_.empty() ? 0 : blocks_.back().view + 1);
  for (std::size_t v = 0; v < views; ++v) {
    const i64 record = meaning_.list_of(v, row, head);
    const SlotRange seen = meaning_.visible(record, row);
    i64 reached = seen.begin;
    for (const Use& use : uses) {
      if (use.block != record) continue;
      if (use.begin <= reached) reached = std::max(reached, use.end);
    }
    require(reached >= seen.end, name + " key", reached, "every visible key read once");
  }
  for (const Use& use : uses) {
    bool own = false;
    for (std::size_t v = 0; v < views; ++v) own |= meaning_.list_of(v, row, head) == use.block;
    require(own, name + " row block", use.block, "row blocks of this row and head");
  }
}

/// Canonical segments: the first item with keys that the row sees folds whole segments, every
/// other is part of one.
void GroupVerifier::check_segments(i64 row, const std::vector<Use>& uses,
                                   const std::string& name) const {
  const i64 segment = header_.segment_tokens;
  std::map<std::size_t, std::pair<i64, i64>> spans;  // by run
  for (const Use& use : uses) {
    const i64 base = meaning_.list(use.block).segment_base;
    const auto [it, fresh] = spans.try_emplace(use.run, base + use.begin, base + use.end);
    if (!fresh) {
      require(it->second.second == base + use.begin, name + " pieces", use.begin,
              "pieces that follow each other");
      it->second.second = base + use.end;
    }
  }
  std::set<std::size_t> seen;
  for (const Use& use : uses) {
    const SlotRange v = meaning_.visible(use.block, row);
    if (use.begin < v.end && v.begin < use.end) seen.insert(use.run);
  }
  std::vector<std::pair<i64, i64>> ordered;
  for (const auto& [run, span] : spans) {
    if (seen.count(run) != 0) ordered.push_back(span);
  }
  std::sort(ordered.begin(), ordered.end());
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    const auto [begin, end] = ordered[i];
    if (i + 1 < ordered.size()) {
      require(end % segment == 0, name + " segment end", end, "a multiple of the segment");
    }
    if (i > 0) {
      require(begin / segment == (end - 1) / segment && begin % segment == 0, name + " segment",
              begin, "exactly one segment after the first item");
    }
  }
}

}  // namespace plait::verification
