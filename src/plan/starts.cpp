// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/starts.h"

namespace plait::planning {
namespace {

/// Keys of all items of each class, head by head.
std::array<i64, device::kMaxClasses> tokens_of_classes(const RunSection& section,
                                                       const std::uint8_t* run_class,
                                                       const device::Run* runs,
                                                       const device::Piece* pieces) {
  std::array<i64, device::kMaxClasses> tokens{};
  for (i32 r = 0; r < section.num_runs; ++r) {
    const device::Run& run = runs[r];
    i64 each = 0;
    for (i32 p = run.piece_begin; p < run.piece_begin + run.num_pieces; ++p) {
      each += i64{pieces[p].kv_end} - pieces[p].kv_begin;
    }
    tokens[run_class[r]] += each * run.head_count;
  }
  return tokens;
}

}  // namespace

void write_starts(const RunSection& section, const Scratch& scratch, BlobWriter& blob,
                  device::GroupHeader& header) {
  const auto* const runs = blob.at<device::Run>(section.run_offset);
  const auto* const pieces = blob.at<device::Piece>(section.piece_offset);
  const auto* const blocks = blob.at<device::RowBlock>(header.block_offset);
  const auto tokens = tokens_of_classes(section, scratch.run_class, runs, pieces);
  for (i32 c = 0; c < header.num_classes; ++c) {
    device::ClassHeader& of = header.classes[c];
    of.kv_tokens = saturate(tokens[static_cast<std::size_t>(c)] / std::max<i64>(of.num_workers, 1));
    of.start_offset = blob.open<device::WorkerStart>(of.num_workers);
    auto* start = blob.at<device::WorkerStart>(of.start_offset);
    const i32* const workers = blob.at<i32>(of.worker_offset);
    const auto* const slices = blob.at<device::Slice>(of.slice_offset);
    for (i32 w = 0; w < of.num_workers; ++w, ++start) {
      *start = device::WorkerStart{};
      if (workers[w] == workers[w + 1]) continue;
      const device::Slice& slice = slices[workers[w]];
      const device::Run& run = runs[slice.run];
      start->first_slice = workers[w];
      start->last_slice = workers[w + 1];
      start->head = run.head_begin + slice.first;
      start->count = slice.count;
      if (run.num_pieces == 0) continue;
      const device::Piece& piece = pieces[run.piece_begin];
      const device::RowBlock& block = blocks[piece.block];
      start->kv_begin = piece.kv_begin;
      start->kv_end = piece.kv_end;
      start->page_begin = block.page_begin;
      start->view = block.view;
      start->request = block.request;
      start->list_end = block.num_slots;
    }
  }
}

}  // namespace plait::planning
