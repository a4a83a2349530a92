// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Certifies a plan against the batch that it was made for. Reads the blob and the batch, and
// nothing that the planner computed on the way.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "plait/error.h"
#include "plan/planner.h"
#include "plan/verify_view.h"

namespace plait {
namespace {

using namespace verification;  // NOLINT: the verifier is the face of this namespace
using device::ClassHeader;
using device::GroupHeader;
using device::Merge;
using device::Piece;
using device::PlanHeader;
using device::RowBlock;
using device::Run;
using device::Slice;
using device::StateRef;

class GroupVerifier {
 public:
  GroupVerifier(const AttentionSpec& spec, const Batch& batch, std::span<const i32> words,
                const GroupHeader& header, const PlanBounds& bounds, std::size_t index)
      : spec_(spec),
        meaning_(spec, batch),
        words_(words),
        header_(header),
        bounds_(bounds),
        index_(index),
        group_size_(spec.group_size()),
        fused_rows_(meaning_.total_q() * group_size_),
        blocks_(section<RowBlock>(header.block_offset, header.num_blocks, "row blocks")),
        pieces_(section<Piece>(header.piece_offset, header.num_pieces, "pieces")),
        runs_(section<Run>(header.run_offset, header.num_runs, "runs")),
        merges_(section<Merge>(header.merge_offset, header.num_merges, "merges")),
        refs_(section<StateRef>(header.ref_offset, header.num_refs, "state references")) {}

  void verify() {
    check_bounds();
    check_blocks();
    check_assignment();
    check_runs();
    check_states();
    // Heads whose runs are the same records need one look.
    std::set<i32> heads{0};
    for (const Run& run : runs_) heads.insert(run.head_begin);
    for (i32 head : heads) check_coverage(head);
  }

 private:
  [[noreturn]] void fail(const std::string& what, i64 value, const std::string& expected) const {
    throw Error(ErrorCode::kInternal, "plan of group " + std::to_string(index_) + ": " + what,
                std::to_string(value), expected);
  }
  void require(bool ok, const std::string& what, i64 value, const char* expected) const {
    if (!ok) fail(what, value, expected);
  }
  static std::string nth(const char* what, i64 i) { return std::string(what) + std::to_string(i); }

  template <class T>
  std::span<const T> section(i32 offset, i32 count, const char* what) const {
    const i64 end = i64{offset} + i64{count} * static_cast<i64>(sizeof(T) / 4);
    if (offset < 0 || count < 0 || end > static_cast<i64>(words_.size())) {
      fail(what, end, "a section inside the blob");
    }
    return {reinterpret_cast<const T*>(words_.data() + offset), static_cast<std::size_t>(count)};
  }

  void check_bounds() const {
    require(header_.num_state_rows <= bounds_.state_rows, "state rows", header_.num_state_rows,
            "at most the bound");
    require(header_.num_counters <= bounds_.counters, "counters", header_.num_counters,
            "at most the bound");
    require(header_.num_merges <= bounds_.merges, "merges", header_.num_merges,
            "at most the bound");
    require(header_.total_q == meaning_.total_q(), "total_q", header_.total_q, "that of the batch");
    const auto kv_len = section<i32>(header_.kv_len_offset, header_.num_requests, "kv_len");
    for (std::size_t r = 0; r < kv_len.size(); ++r) {
      const i64 expected = meaning_.kv_len(static_cast<i64>(r));
      require(expected < 0 || kv_len[r] == expected, nth("kv_len ", static_cast<i64>(r)), kv_len[r],
              "that of the request");
    }
    if (header_.row_pos_offset < 0) return;
    const auto row_pos = section<i32>(header_.row_pos_offset, header_.total_q, "row positions");
    for (std::size_t q = 0; q < row_pos.size(); ++q) {
      require(row_pos[q] == meaning_.position_of(static_cast<i64>(q)),
              nth("position of row ", static_cast<i64>(q)), row_pos[q], "that of the row");
    }
  }

  void check_blocks() const {
    require(header_.num_blocks == meaning_.num_lists(), "row blocks", header_.num_blocks,
            "one per list of the batch");
    for (i64 b = 0; b < meaning_.num_lists(); ++b) {
      const RowBlock& block = blocks_[static_cast<std::size_t>(b)];
      const BatchMeaning::List& list = meaning_.list(b);
      const std::string name = nth("row block ", b);
      require(block.view == list.view && block.row_begin == list.row_begin &&
                  block.num_rows == list.row_end - list.row_begin,
              name + " rows", block.row_begin, "those of its view");
      require(block.page_begin == list.page_begin && block.num_slots == list.slots, name + " slots",
              block.num_slots, "those of its list");
      if (list.row_begin == list.row_end) continue;
      const i64 request = meaning_.request_of(list.row_begin);
      require(block.request == request, name + " request", block.request, "that of its rows");
      require(block.kv_len == meaning_.kv_len(request), name + " kv_len", block.kv_len,
              "that of its request");
      require((block.flags & device::kBlockHasPositions) != 0 ||
                  (block.base_pos == list.base && block.segment_base == block.base_pos) ||
                  (block.base_pos == list.base && block.segment_base == list.segment_base),
              name + " base position", block.base_pos, "where the outer views end");
      const bool spans = (block.flags & device::kBlockSpansRequests) != 0;
      require(spans == list.spans, name + " flags", block.flags, "spanning as its rows do");
      require(
          spans ? header_.row_pos_offset >= 0 : block.pos0 == meaning_.position_of(list.row_begin),
          name + " pos0", block.pos0, "the position of its first row");
      require(((block.flags & device::kBlockHasPositions) != 0) == list.has_positions,
              name + " flags", block.flags, "positions as in its view");
      const bool last = list.view + 1 == blocks_.back().view + 1;
      const bool custom = spec_.mask == MaskKind::kCustom && last;
      require(((block.flags & device::kBlockCustomMask) != 0) == custom, name + " flags",
              block.flags, "a custom mask in the last view exactly");
      if (!custom) continue;
      const i64 bit =
          static_cast<i64>((std::uint64_t{block.mask_bit0_hi} << 32) | block.mask_bit0_lo);
      i64 first_row = list.row_begin;
      while (first_row > 0 && meaning_.request_of(first_row - 1) == request) --first_row;
      require(block.mask_row_bits == meaning_.mask_row_bits(request) &&
                  bit == meaning_.mask_first_bit(request) +
                             (list.row_begin - first_row) * meaning_.mask_row_bits(request) &&
                  block.mask_pos_base == meaning_.kv_len(request) - block.mask_row_bits,
              name + " mask bits", bit, "byte-aligned bits of its request");
    }
  }

  void check_runs() const {
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

  void check_piece(const Run& run, const Piece& piece, const std::string& name) const {
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
  void check_tiles(const Run& run, i64 tile, const std::string& name) const {
    const i64 first = run.fused_row_begin / group_size_;
    const i64 last = (run.fused_row_begin + run.num_fused_rows - 1) / group_size_;
    // Tiles as intervals of a coordinate: canonical ones are counted from 0, others from the item.
    std::map<i64, bool> seen;
    for (i32 p = run.piece_begin; p < run.piece_begin + run.num_pieces; ++p) {
      const Piece& piece = pieces_[static_cast<std::size_t>(p)];
      const i64 base = header_.segment_tokens > 0 ? meaning_.list(piece.block).segment_base
                                                  : -i64{piece.kv_begin};
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

  void check_assignment() {
    std::vector<std::vector<char>> given(runs_.size());
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      require(runs_[r].head_count > 0 && runs_[r].head_count <= spec_.num_kv_heads,
              nth("heads of run ", static_cast<i64>(r)), runs_[r].head_count,
              "KV heads of the spec");
      given[r].assign(static_cast<std::size_t>(runs_[r].head_count), 0);
    }
    run_tile_.assign(runs_.size(), 0);
    require(header_.num_classes >= 1 && header_.num_classes <= device::kMaxClasses, "classes",
            header_.num_classes, "1..4");
    for (i32 c = 0; c < header_.num_classes; ++c) {
      const ClassHeader& k = header_.classes[c];
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

  /// Every state row belongs to one item and is merged once, in order, by merges its run names.
  void check_states() {
    struct Owner {
      i32 run = -1;
      i32 head = 0;
      i32 fused = 0;
      bool merged = false;
    };
    std::vector<Owner> owners(static_cast<std::size_t>(header_.num_state_rows));
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      const Run& run = runs_[r];
      if (run.state_begin < 0) {
        require(run.state_begin == -1 && run.num_merges == 0, nth("run ", static_cast<i64>(r)),
                run.num_merges, "no merges for an item that writes the output");
        continue;
      }
      require(
          i64{run.state_begin} + i64{run.num_fused_rows} * run.head_count <= header_.num_state_rows,
          nth("states of run ", static_cast<i64>(r)), run.state_begin, "rows of the buffer");
      for (i32 h = 0; h < run.head_count; ++h) {
        for (i32 i = 0; i < run.num_fused_rows; ++i) {
          Owner& o =
              owners[static_cast<std::size_t>(run.state_begin) +
                     static_cast<std::size_t>(h) * static_cast<std::size_t>(run.num_fused_rows) +
                     static_cast<std::size_t>(i)];
          require(o.run < 0, nth("states of run ", static_cast<i64>(r)), run.state_begin,
                  "rows of its own");
          o = {static_cast<i32>(r), run.head_begin + h, run.fused_row_begin + i, false};
        }
      }
    }
    std::vector<char> counter(static_cast<std::size_t>(header_.num_counters), 0);
    for (std::size_t m = 0; m < merges_.size(); ++m) {
      const Merge& merge = merges_[m];
      const std::string name = nth("merge ", static_cast<i64>(m));
      require(merge.num_refs > 0 && merge.ref_begin >= 0 &&
                  i64{merge.ref_begin} + merge.num_refs <= header_.num_refs,
              name + " references", merge.ref_begin, "references of the plan");
      require(merge.head_count == merges_[0].head_count &&
                  merge.counter_begin == static_cast<i64>(m) * merge.head_count,
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
            Owner& o = owners[static_cast<std::size_t>(row)];
            require(o.run >= 0 && !o.merged, name + " state row", row, "a state merged once");
            o.merged = true;
            require(o.head == merge.head_begin + h && o.fused == merge.fused_row_begin + i,
                    name + " state row", row, "the state of its own row and head");
            const Run& run = runs_[static_cast<std::size_t>(o.run)];
            require(static_cast<i64>(m) >= run.merge_begin &&
                        static_cast<i64>(m) < i64{run.merge_begin} + run.num_merges,
                    name, o.run, "to be named by the run of each state");
            order = order_of(run);
          }
          require(order > before, name + " order", k, "states in order of their keys");
          before = order;
        }
      }
    }
    for (std::size_t row = 0; row < owners.size(); ++row) {
      require(owners[row].run < 0 || owners[row].merged, "state row", static_cast<i64>(row),
              "to be merged");
    }
    for (std::size_t r = 0; r < runs_.size(); ++r) check_merge_range(runs_[r], r);
  }

  /// The merges that a run names are exactly those of its rows.
  void check_merge_range(const Run& run, std::size_t index) const {
    if (run.state_begin < 0) return;
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
  std::pair<i64, i64> order_of(const Run& run) const {
    if (run.num_pieces == 0) return {INT32_MAX, 0};
    const Piece& piece = pieces_[static_cast<std::size_t>(run.piece_begin)];
    return {meaning_.list(piece.block).segment_base + piece.kv_begin,
            meaning_.list(piece.block).view};
  }

  struct Use {
    i64 block, begin, end;
    std::size_t run;
  };

  void check_coverage(i32 head) const {
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
  void check_row(i64 fused, i32 head, std::vector<Use> uses, const std::string& name) const {
    std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
      return a.block != b.block ? a.block < b.block : a.begin < b.begin;
    });
    for (std::size_t i = 1; i < uses.size(); ++i) {
      require(uses[i].block != uses[i - 1].block || uses[i].begin >= uses[i - 1].end, name + " key",
              uses[i].begin, "no key read twice");
    }
    const i64 row = fused / group_size_;
    const std::size_t views =
        static_cast<std::size_t>(blocks_.empty() ? 0 : blocks_.back().view + 1);
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
  void check_segments(i64 row, const std::vector<Use>& uses, const std::string& name) const {
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

  const AttentionSpec& spec_;
  BatchMeaning meaning_;
  std::span<const i32> words_;
  const GroupHeader& header_;
  const PlanBounds& bounds_;
  std::size_t index_;
  i64 group_size_;
  i64 fused_rows_;
  std::span<const RowBlock> blocks_;
  std::span<const Piece> pieces_;
  std::span<const Run> runs_;
  std::span<const Merge> merges_;
  std::span<const StateRef> refs_;
  std::vector<i64> run_tile_;
};

}  // namespace

void verify_plan(std::span<const AttentionSpec> groups, std::span<const Batch> batches,
                 const Plan& plan, const PlanBounds& bounds) {
  const auto fail = [](const char* what, std::int64_t value, const char* expected) {
    throw Error(ErrorCode::kInternal, std::string("plan: ") + what, std::to_string(value),
                expected);
  };
  const std::int64_t size = static_cast<std::int64_t>(plan.words.size());
  if (size < static_cast<std::int64_t>(sizeof(PlanHeader) / 4)) fail("words", size, "a header");
  if (size > bounds.plan_words) fail("words", size, "at most the bound");
  const PlanHeader& header = *reinterpret_cast<const PlanHeader*>(plan.words.data());
  if (header.magic != device::kPlanMagic) fail("magic", header.magic, "that of a plan");
  if (header.version != device::kPlanVersion) fail("version", header.version, "this version");
  if (header.total_words != size) fail("total words", header.total_words, "the blob's size");
  if (header.num_groups != static_cast<std::int64_t>(groups.size())) {
    fail("groups", header.num_groups, "one per spec");
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::int64_t offset = header.group_offset[g];
    if (offset < 0 || offset + static_cast<std::int64_t>(sizeof(GroupHeader) / 4) > size) {
      fail("group offset", offset, "inside the blob");
    }
    const GroupHeader& group = *reinterpret_cast<const GroupHeader*>(plan.words.data() + offset);
    GroupVerifier(groups[g], batches[batches.size() == 1 ? 0 : g], plan.words, group, bounds, g)
        .verify();
  }
}

}  // namespace plait
