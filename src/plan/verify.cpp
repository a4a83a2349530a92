// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Certifies a plan against the batch that it was made for: the plan as a whole, and what its groups
// say of the batch.
#include <numeric>
#include <set>
#include <string>

#include "plait/error.h"
#include "plan/planner.h"
#include "plan/verify_group.h"

namespace plait {
namespace verification {

using device::GroupHeader;
using device::Merge;
using device::Piece;
using device::RowBlock;
using device::Run;
using device::StateRef;

GroupVerifier::GroupVerifier(const AttentionSpec& spec, const Batch& batch,
                             std::span<const i32> words, const GroupHeader& header,
                             const PlanBounds& bounds, std::size_t index)
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

void GroupVerifier::verify() {
  check_bounds();
  check_blocks();
  check_assignment();
  check_runs();
  check_starts();
  check_states();
  // Heads whose runs are the same records need one look.
  std::set<i32> heads{0};
  for (const Run& run : runs_) heads.insert(run.head_begin);
  for (i32 head : heads) check_coverage(head);
}

void GroupVerifier::fail(const std::string& what, i64 value, const std::string& expected) const {
  throw Error(ErrorCode::kInternal, "plan of group " + std::to_string(index_) + ": " + what,
              std::to_string(value), expected);
}

void GroupVerifier::check_bounds() const {
  const auto within = [&](const char* what, i64 value, i64 bound) {
    require(value >= 0 && value <= bound, what, value, "0 up to the bound");
  };
  within("state rows", header_.num_state_rows, bounds_.state_rows);
  within("counters", header_.num_counters, bounds_.counters);
  within("merges", header_.num_merges, bounds_.merges);
  require(header_.total_q == meaning_.total_q(), "total_q", header_.total_q, "that of the batch");
  require(header_.num_requests == meaning_.num_requests(), "requests", header_.num_requests,
          "those of the batch");
  const auto q_indptr = section<i32>(header_.q_indptr_offset, header_.num_requests + 1, "q_indptr");
  for (std::size_t r = 0; r < q_indptr.size(); ++r) {
    require(q_indptr[r] == meaning_.first_row(static_cast<i64>(r)),
            nth("q_indptr ", static_cast<i64>(r)), q_indptr[r], "that of the batch");
  }
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

void GroupVerifier::check_blocks() const {
  require(header_.num_blocks == meaning_.num_lists(), "row blocks", header_.num_blocks,
          "one per list of the batch");
  const auto kv_len = section<i32>(header_.kv_len_offset, header_.num_requests, "kv_len");
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
    require(((block.flags & device::kBlockRagged) != 0) == (spec_.kv_kind == KvKind::kRagged),
            name + " flags", block.flags, "ragged as the spec");
    require(((block.flags & device::kBlockHasPositions) != 0) == list.has_positions,
            name + " flags", block.flags, "positions as in its view");
    require(
        !spec_.rope.explicit_k_positions ||
            block.rope_k_begin == std::accumulate(kv_len.begin(), kv_len.begin() + request, i64{0}),
        name + " rope_k_begin", block.rope_k_begin, "the keys of the requests before");
    const bool last = list.view + 1 == blocks_.back().view + 1;
    const bool custom = spec_.mask == MaskKind::kCustom && last;
    require(((block.flags & device::kBlockCustomMask) != 0) == custom, name + " flags", block.flags,
            "a custom mask in the last view exactly");
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

}  // namespace verification

void verify_plan(std::span<const AttentionSpec> groups, std::span<const Batch> batches,
                 const Plan& plan, const PlanBounds& bounds) {
  const auto fail = [](const char* what, std::int64_t value, const char* expected) {
    throw Error(ErrorCode::kInternal, std::string("plan: ") + what, std::to_string(value),
                expected);
  };
  const std::int64_t size = static_cast<std::int64_t>(plan.words.size());
  if (size < static_cast<std::int64_t>(sizeof(device::PlanHeader) / 4))
    fail("words", size, "a header");
  if (size > bounds.plan_words) fail("words", size, "at most the bound");
  const auto& header = *reinterpret_cast<const device::PlanHeader*>(plan.words.data());
  if (header.magic != device::kPlanMagic) fail("magic", header.magic, "that of a plan");
  if (header.version != device::kPlanVersion) fail("version", header.version, "this version");
  if (header.total_words != size) fail("total words", header.total_words, "the blob's size");
  if (header.spec_fingerprint != plan_fingerprint(groups))
    fail("fingerprint", 0, "that of the specs");
  if (header.num_groups != static_cast<std::int64_t>(groups.size())) {
    fail("groups", header.num_groups, "one per spec");
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::int64_t offset = device::group_header_offset(static_cast<std::int32_t>(g));
    if (offset + static_cast<std::int64_t>(sizeof(device::GroupHeader) / 4) > size) {
      fail("group header", offset, "inside the blob");
    }
    const auto& group = *reinterpret_cast<const device::GroupHeader*>(plan.words.data() + offset);
    verification::GroupVerifier(groups[g], batches[batches.size() == 1 ? 0 : g], plan.words, group,
                                bounds, g)
        .verify();
  }
}

}  // namespace plait
