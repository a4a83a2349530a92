// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/verify_view.h"

#include <algorithm>

namespace plait::verification {

BatchMeaning::BatchMeaning(const AttentionSpec& spec, const Batch& batch)
    : spec_(spec), batch_(batch) {
  const std::size_t requests = batch.qo_indptr.size() - 1;
  for (std::size_t r = 0; r < requests; ++r) {
    for (i32 q = batch.qo_indptr[r]; q < batch.qo_indptr[r + 1]; ++q) {
      row_request_.push_back(static_cast<i64>(r));
    }
  }
  for (std::size_t v = 0; v < batch.views.size(); ++v) {
    const View& view = batch.views[v];
    view_begin_.push_back(num_lists());
    std::vector<i64> rows;
    const std::size_t blocks = view.row_indptr.size() - 1;
    const i64 heads = view.per_kv_head ? spec.num_kv_heads : 1;
    for (std::size_t b = 0; b < blocks; ++b) {
      for (i32 q = view.row_indptr[b]; q < view.row_indptr[b + 1]; ++q) {
        rows.push_back(static_cast<i64>(b));
      }
      for (i64 h = 0; h < heads; ++h) {
        const std::size_t k = b * static_cast<std::size_t>(heads) + static_cast<std::size_t>(h);
        List list;
        list.view = static_cast<i64>(v);
        list.row_begin = view.row_indptr[b];
        list.row_end = view.row_indptr[b + 1];
        list.page_begin = view.page_indptr[k];
        const i64 pages = i64{view.page_indptr[k + 1]} - view.page_indptr[k];
        list.slots = pages;
        if (spec.kv_kind == KvKind::kPaged && pages > 0) {
          list.slots = (pages - 1) * spec.page_size + view.last_page_len[k];
        }
        list.at_run = view.positions_at_run;
        list.has_positions = view.positions_at_run || !view.positions.empty();
        if (list.row_begin < list.row_end) {
          list.spans = row_request_[static_cast<std::size_t>(list.row_begin)] !=
                       row_request_[static_cast<std::size_t>(list.row_end) - 1];
        }
        if (v > 0 && list.row_begin < list.row_end) {
          // Heads of the outer view end apart only where nothing follows them: head 0 stands for
          // all.
          const i64 outer = list_of(v - 1, list.row_begin, list.slots == 0 ? 0 : h);
          list.base = list_end(lists_[static_cast<std::size_t>(outer)]);
          list.segment_base = lists_[static_cast<std::size_t>(outer)].segment_base +
                              lists_[static_cast<std::size_t>(outer)].slots;
        }
        lists_.push_back(list);
      }
    }
    row_block_.push_back(std::move(rows));
  }
  view_begin_.push_back(num_lists());
  i64 mask_byte = 0;
  for (std::size_t r = 0; r < requests; ++r) {
    const i64 first = batch.qo_indptr[r];
    const i64 rows = batch.qo_indptr[r + 1] - first;
    const std::size_t last_view = batch.views.size() - 1;
    i64 length = 0;
    i64 last_level_begin = 0;
    if (rows > 0) {
      const List& list = lists_[static_cast<std::size_t>(list_of(last_view, first, 0))];
      length = list_end(list);
      last_level_begin = list.base;
    } else if (batch.views.size() > 1) {
      length = -1;  // which outer blocks a request without rows belongs to is nobody's business
    } else if (batch.views[last_view].row_indptr.size() == batch.qo_indptr.size()) {
      const i64 lists = batch.views[last_view].per_kv_head ? spec.num_kv_heads : 1;
      length = list_end(
          lists_[static_cast<std::size_t>(view_begin_[last_view] + static_cast<i64>(r) * lists)]);
    }
    if (!batch.kv_len.empty()) length = batch.kv_len[r];
    const i64 last_level = length - last_level_begin;
    kv_len_.push_back(length);
    mask_bits_.push_back(last_level);
    mask_begin_.push_back(mask_byte * 8);
    mask_byte += (rows * last_level + 7) / 8;
  }
}

i64 BatchMeaning::position_of(i64 row) const {
  const std::size_t r = static_cast<std::size_t>(request_of(row));
  return row - batch_.qo_indptr[r] + kv_len_[r] - (batch_.qo_indptr[r + 1] - batch_.qo_indptr[r]);
}

i64 BatchMeaning::list_of(std::size_t view, i64 row, i64 head) const {
  const i64 block = row_block_[view][static_cast<std::size_t>(row)];
  if (!batch_.views[view].per_kv_head) return view_begin_[view] + block;
  return view_begin_[view] + block * spec_.num_kv_heads + head;
}

i64 BatchMeaning::slot_position(const List& list, i64 slot) const {
  if (!list.has_positions) return list.base + slot;
  const View& view = batch_.views[static_cast<std::size_t>(list.view)];
  const i64 page = list.page_begin + slot / spec_.page_size;
  return view.positions[static_cast<std::size_t>(page)] + slot % spec_.page_size;
}

i64 BatchMeaning::list_end(const List& list) const {
  if (list.slots == 0 || list.at_run) return list.base + list.slots;
  return slot_position(list, list.slots - 1) + 1;
}

bool BatchMeaning::row_sees(i64 position, i64 row) const {
  const i64 at = position_of(row);
  if (position >= kv_len(request_of(row))) return false;
  if (spec_.mask == MaskKind::kCausal && position > at) return false;
  return spec_.window_left < 0 || position >= at - spec_.window_left;
}

SlotRange BatchMeaning::visible(i64 record, i64 row) const {
  const List& l = list(record);
  if (l.at_run) return {0, l.slots};
  // Positions increase with slots and what a row sees is one range of positions: skip whole pages
  // (or, without positions, strides of a page) from both sides, then single slots.
  const i64 step = l.has_positions ? spec_.page_size : 64;
  SlotRange range{0, l.slots};
  const auto hidden = [&](i64 begin, i64 end) {
    // No slot of a run of consecutive positions is seen if neither end is and none lies between.
    const i64 low = slot_position(l, begin);
    const i64 high = slot_position(l, end - 1);
    const i64 at = position_of(row);
    const i64 first = spec_.window_left < 0 ? 0 : at - spec_.window_left;
    i64 last = kv_len(request_of(row)) - 1;
    if (spec_.mask == MaskKind::kCausal) last = std::min(last, at);
    return high < first || low > last;
  };
  while (range.begin < range.end &&
         hidden(range.begin, std::min(range.end, range.begin / step * step + step))) {
    range.begin = std::min(range.end, range.begin / step * step + step);
  }
  while (range.begin < range.end && !row_sees(slot_position(l, range.begin), row)) ++range.begin;
  while (range.begin < range.end) {
    const i64 begin = std::max(range.begin, (range.end - 1) / step * step);
    if (!hidden(begin, range.end)) break;
    range.end = begin;
  }
  while (range.begin < range.end && !row_sees(slot_position(l, range.end - 1), row)) --range.end;
  if (range.begin >= range.end) return {0, 0};
  return range;
}

bool BatchMeaning::sees_all(i64 record, i64 row, SlotRange range) const {
  if (range.begin >= range.end) return true;
  const List& l = list(record);
  const bool custom =
      spec_.mask == MaskKind::kCustom && l.view + 1 == static_cast<i64>(batch_.views.size());
  if (l.at_run) {
    // Positions anywhere below the length of every request of the list: the row must see all.
    i64 length = kv_len(request_of(row));
    for (i64 r = request_of(l.row_begin); r <= request_of(l.row_end - 1); ++r) {
      const auto next = static_cast<std::size_t>(r) + 1;
      if (batch_.qo_indptr[next - 1] < batch_.qo_indptr[next]) length = std::min(length, kv_len(r));
    }
    return !custom && row_sees(0, row) && row_sees(length - 1, row);
  }
  const SlotRange seen = visible(record, row);
  if (range.begin < seen.begin || range.end > seen.end) return false;
  if (!custom) return true;
  const i64 request = request_of(row);
  return slot_position(l, range.end - 1) < kv_len(request) - mask_row_bits(request);
}

}  // namespace plait::verification
