// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/batch_flat.h"

#include <algorithm>
#include <cstring>

namespace plait::batch {
namespace {

using device::RowBlock;
using i32 = std::int32_t;
using i64 = std::int64_t;

template <bool Paged>
bool resolve(const AttentionSpec& spec, const Batch& batch, RowBlock* records, i32* kv_len,
             i64* longest) {
  // In locals, which what is written below cannot change.
  const View& view = batch.views[0];
  const i64 requests = static_cast<i64>(batch.qo_indptr.size()) - 1;
  const i32* const rows = batch.qo_indptr.data();
  const i32* const pages = view.page_indptr.data();
  const i32* const last_page_len = view.last_page_len.data();
  const i32 page_size = spec.page_size;
  const i32 flags = Paged ? 0 : device::kBlockRagged;
  bool fine = true;
  i64 most = 0;
  for (i64 r = 0; r < requests; ++r) {
    const i32 page_begin = pages[r];
    const i32 count = pages[r + 1] - page_begin;
    i64 slots = count;
    if constexpr (Paged) {
      const i32 any = count > 0 ? 1 : 0;
      const i32 last = last_page_len[r];
      // 1..page_size in a list with pages, else 0.
      fine &= static_cast<std::uint32_t>(last) - static_cast<std::uint32_t>(any) <
              static_cast<std::uint32_t>(any != 0 ? page_size : 1);
      slots = i64{count - any} * page_size + last;
    }
    most = std::max(most, slots);
    const i32 row_begin = rows[r];
    const i32 num_rows = rows[r + 1] - row_begin;
    const i32 length = static_cast<i32>(slots);
    kv_len[r] = length;
    RowBlock& out = records[r];
    out.view = 0;
    out.row_begin = row_begin;
    out.num_rows = num_rows;
    out.page_begin = page_begin;
    out.num_slots = length;
    out.base_pos = 0;
    out.pos0 = static_cast<i32>(slots - num_rows);
    out.request = static_cast<i32>(r);
    out.flags = flags;
    out.kv_len = length;
    out.mask_bit0_lo = out.mask_bit0_hi = 0;
    out.mask_row_bits = out.mask_pos_base = 0;
    out.rope_k_begin = out.segment_base = 0;
  }
  *longest = most;
  return fine && most <= INT32_MAX;
}

}  // namespace

bool is_flat(const AttentionSpec& spec, const Batch& batch) {
  if (batch.views.size() != 1 || !batch.kv_len.empty()) return false;
  const View& view = batch.views[0];
  if (view.per_kv_head || view.positions_at_run || !view.positions.empty()) return false;
  if (spec.mask == MaskKind::kCustom || spec.rope.explicit_k_positions) return false;
  const std::span<const i32> rows = view.row_indptr;
  const std::span<const i32> requests = batch.qo_indptr;
  return rows.size() == requests.size() &&
         (rows.data() == requests.data() ||
          std::memcmp(rows.data(), requests.data(), rows.size_bytes()) == 0);
}

bool resolve_flat(const AttentionSpec& spec, const Batch& batch, RowBlock* records, i32* kv_len,
                  i64* longest) {
  return spec.kv_kind == KvKind::kPaged ? resolve<true>(spec, batch, records, kv_len, longest)
                                        : resolve<false>(spec, batch, records, kv_len, longest);
}

}  // namespace plait::batch
