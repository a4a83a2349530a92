// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/batch_view.h"

#include <algorithm>
#include <string>

#include "core/batch_refusals.h"

namespace plait::batch {

using device::RowBlock;
using i32 = std::int32_t;
using i64 = std::int64_t;

namespace {

/// Finds the block of the outer view that holds the rows of block `b`. Both are in row order.
i64 parent_of(const View& outer, i64 cursor, i64 b, i64 num_blocks, i32 row_begin, i32 row_end,
              std::size_t view_index) {
  const i64 outer_blocks = static_cast<i64>(outer.row_indptr.size()) - 1;
  // A block without rows belongs to its namesake, if the outer view lists the same blocks there.
  if (row_begin == row_end && outer_blocks == num_blocks &&
      outer.row_indptr[static_cast<std::size_t>(b)] == row_begin &&
      outer.row_indptr[static_cast<std::size_t>(b) + 1] == row_begin) {
    return b;
  }
  while (cursor + 1 < outer_blocks &&
         outer.row_indptr[static_cast<std::size_t>(cursor) + 1] <= row_begin) {
    ++cursor;
  }
  if (row_begin < row_end && outer.row_indptr[static_cast<std::size_t>(cursor) + 1] < row_end) {
    refuse(at(name(view_index, "row_indptr"), b + 1), row_end,
           "row blocks nested in those of the view before: a boundary at row " +
               std::to_string(outer.row_indptr[static_cast<std::size_t>(cursor) + 1]));
  }
  return cursor;
}

}  // namespace

void ViewPass::check_arrays() const {
  check_indptr(view.row_indptr, [&] { return name(index, "row_indptr"); });
  if (view.row_indptr.back() != batch.qo_indptr.back()) {
    refuse(at(name(index, "row_indptr"), num_blocks), view.row_indptr.back(),
           "the number of query rows, " + std::to_string(batch.qo_indptr.back()));
  }
  check_indptr(view.page_indptr, [&] { return name(index, "page_indptr"); });
  if (view.positions_at_run && !view.positions.empty()) {
    refuse(name(index, "positions") + " (length)", static_cast<i64>(view.positions.size()),
           "0 with positions_at_run");
  }
  if (!view.positions.empty()) {
    check_size([&] { return name(index, "positions"); }, view.positions.size(),
               view.page_indptr.back(), "number of listed pages");
  }
}

void ViewPass::check_positions(i64 list, i64 begin, i64 end, i32 last) const {
  const i32 page_size = spec.page_size;
  i64 next = 0;
  for (i64 p = begin; p < end; ++p) {
    const i64 position = view.positions[static_cast<std::size_t>(p)];
    if (position < next) {
      refuse(at(name(index, "positions"), p), position,
             "at least " + std::to_string(next) + " (increasing, without overlap in list " +
                 std::to_string(list) + ")");
    }
    next = position + (p + 1 == end ? last : page_size);
  }
  if (next > kMaxIndex) {
    refuse(at(name(index, "positions"), end - 1), next - last, "a position below 2^31");
  }
}

void ViewPass::refuse_last_page(i64 list) const {
  const i32 last = view.last_page_len[static_cast<std::size_t>(list)];
  const bool pages = view.page_indptr[static_cast<std::size_t>(list)] !=
                     view.page_indptr[static_cast<std::size_t>(list) + 1];
  refuse(at(name(index, "last_page_len"), list), last,
         pages ? "1.." + std::to_string(spec.page_size) + " for a list with pages"
               : "0 for a list without pages");
}

/// Moves `request` on to the first one with rows of block `b`, checks that they belong together,
/// and returns the record's flags for them.
i32 ViewPass::place_rows(i64 b, i64& request) const {
  const i32 row_begin = view.row_indptr[static_cast<std::size_t>(b)];
  const i32 row_end = view.row_indptr[static_cast<std::size_t>(b) + 1];
  if (row_begin == row_end) return 0;
  const auto begin_of = [&](i64 r) { return batch.qo_indptr[static_cast<std::size_t>(r)]; };
  while (begin_of(request + 1) <= row_begin) ++request;
  if (row_end > begin_of(request + 1)) {
    i64 last = request;
    while (begin_of(last + 1) < row_end) ++last;
    if (begin_of(request) != row_begin || begin_of(last + 1) != row_end) {
      refuse(at(name(index, "row_indptr"), b), row_begin,
             "request boundaries at both ends of a row block that spans requests");
    }
    return device::kBlockSpansRequests;
  }
  if (row_end - row_begin != begin_of(request + 1) - begin_of(request)) {
    if (!view.positions_at_run && view.positions.empty() && view.page_indptr.back() != 0) {
      refuse(at(name(index, "row_indptr"), b), row_begin,
             "positions when a row block is a part of a request");
    }
    if (batch.kv_len.empty()) {
      refuse("kv_len (length)", 0, "one per request when row blocks are parts of requests");
    }
  }
  return 0;
}

i64 ViewPass::list_apart(i64 b) const {
  const i64 begin = b * lists;
  const i32 first = list_end(records[begin], begin);
  for (i64 list = begin + 1; list < begin + lists; ++list) {
    if (list_end(records[list], list) != first) return list;
  }
  return -1;
}

/// The lists of a row block's heads end together, unless positions and kv_len say where.
void ViewPass::check_heads(i64 b) const {
  const bool may_differ =
      view.positions_at_run || (!view.positions.empty() && !batch.kv_len.empty());
  if (may_differ) return;
  const i64 list = list_apart(b);
  if (list < 0) return;
  const i64 begin = b * lists;
  refuse(at(name(index, "page_indptr"), list + 1), list_end(records[list], list),
         "the KV length of head 0 of its row block, " +
             std::to_string(list_end(records[begin], begin)) +
             " (heads agree unless positions and kv_len are given)");
}

/// Keys without positions start where those of the outer view end, which is one place.
void ViewPass::check_start(const ViewPass& outer, i64 parent, i64 b) const {
  if (outer.lists == 1 || !view.positions.empty() || view.positions_at_run) return;
  const auto block = static_cast<std::size_t>(b);
  const bool reads = view.row_indptr[block] != view.row_indptr[block + 1] &&
                     view.page_indptr[block * static_cast<std::size_t>(lists)] !=
                         view.page_indptr[(block + 1) * static_cast<std::size_t>(lists)];
  if (!reads || outer.list_apart(parent) < 0) return;
  refuse(name(index, "positions") + " (length)", 0, "positions after a view whose heads end apart");
}

void ViewPass::resolve(const ViewPass* outer, bool* spans, i32* parents) const {
  const i64 last_request = std::max<i64>(static_cast<i64>(batch.qo_indptr.size()) - 2, 0);
  const i32 flags_of_view =
      (spec.kv_kind == KvKind::kRagged ? device::kBlockRagged : 0) |
      (view.positions_at_run || !view.positions.empty() ? device::kBlockHasPositions : 0);
  // In locals, which what is written below cannot change: planning a batch of decodes is mostly
  // passes like this one over its requests.
  const i32* const rows = view.row_indptr.data();
  const i32* const pages = view.page_indptr.data();
  const i32* const last_page_len =
      spec.kv_kind == KvKind::kPaged ? view.last_page_len.data() : nullptr;
  const bool positions = !view.positions.empty();
  const i32 page_size = spec.page_size;
  const i64 lists_per_block = lists;
  const auto slots_of = [&](i64 list) -> i64 {
    const i64 count = pages[list + 1] - pages[list];
    const i32 last = last_page_len == nullptr ? 1 : last_page_len[list];
    const bool paged = last_page_len != nullptr;
    if (paged && (count == 0 ? last != 0 : last < 1 || last > page_size)) refuse_last_page(list);
    if (positions) check_positions(list, pages[list], pages[list + 1], last);
    if (!paged) return count;
    return count == 0 ? 0 : (count - 1) * page_size + last;
  };
  i64 parent = 0;
  i64 request = 0;
  for (i64 b = 0; b < num_blocks; ++b) {
    const i32 row_begin = rows[b];
    const i32 row_end = rows[b + 1];
    i64 base = 0;
    i32 segment_base = 0;
    if (outer != nullptr && outer->num_blocks > 0) {
      parent = parent_of(outer->view, parent, b, num_blocks, row_begin, row_end, index);
      const i64 list = parent * outer->lists;
      check_start(*outer, parent, b);
      const RowBlock& o = outer->records[list];
      base = outer->list_end(o, list);
      segment_base = o.segment_base + o.num_slots;
    }
    i32 flags = flags_of_view;
    if (one_per_request) {
      request = b;
    } else if (const i32 placed = place_rows(b, request); placed != 0) {
      flags |= placed;
      *spans = true;
    }
    for (i64 list = b * lists_per_block; list < (b + 1) * lists_per_block; ++list) {
      if (parents != nullptr) parents[list] = outer == nullptr ? -1 : static_cast<i32>(parent);
      const i64 slots = slots_of(list);
      if (base + slots > kMaxIndex) {
        refuse(at(name(index, "page_indptr"), list + 1), base + slots, "fewer than 2^31 tokens");
      }
      // What depends on the lengths of requests is filled when they are known.
      RowBlock r{};
      r.view = static_cast<i32>(index);
      r.row_begin = row_begin;
      r.num_rows = row_end - row_begin;
      r.page_begin = pages[list];
      r.num_slots = static_cast<i32>(slots);
      r.base_pos = static_cast<i32>(base);
      r.request = static_cast<i32>(std::min(request, last_request));
      r.flags = flags;
      r.segment_base = segment_base;
      records[list] = r;
    }
    if (lists_per_block > 1) check_heads(b);
  }
}

}  // namespace plait::batch
