// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/batch_resolve.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "core/batch_flat.h"
#include "core/batch_refusals.h"
#include "core/batch_view.h"
#include "plait/error.h"

namespace plait {
namespace {

using batch::at;
using batch::check_indptr;
using batch::check_size;
using batch::kMaxIndex;
using batch::name;
using batch::refuse;
using batch::ViewPass;
using device::RowBlock;
using i32 = std::int32_t;
using i64 = std::int64_t;
using Indices = std::span<const i32>;

bool same(Indices a, Indices b) {
  return a.size() == b.size() &&
         (a.data() == b.data() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace

BatchCounts count_batch(const AttentionSpec& spec, const Batch& batch) {
  BatchCounts counts;
  if (batch.qo_indptr.empty()) refuse("qo_indptr (length)", 0, "number of requests + 1");
  counts.num_requests = static_cast<i64>(batch.qo_indptr.size()) - 1;
  counts.total_q = batch.qo_indptr.back();
  if (counts.total_q < 0) {
    refuse(at("qo_indptr", counts.num_requests), counts.total_q, "a non-negative number");
  }
  if (counts.total_q * spec.group_size() > kMaxIndex) {
    refuse(at("qo_indptr", counts.num_requests), counts.total_q,
           "fewer than 2^31 rows times query heads per KV head");
  }
  if (!batch.kv_len.empty()) {
    check_size([] { return std::string("kv_len"); }, batch.kv_len.size(), counts.num_requests,
               "number of requests");
  }
  if (batch.views.empty() || batch.views.size() > static_cast<std::size_t>(kMaxViews)) {
    refuse("views (length)", static_cast<i64>(batch.views.size()),
           "1.." + std::to_string(kMaxViews));
  }
  i64 blocks = 0;
  for (std::size_t v = 0; v < batch.views.size(); ++v) {
    const View& view = batch.views[v];
    if (view.row_indptr.empty()) {
      refuse(name(v, "row_indptr") + " (length)", 0, "number of row blocks + 1");
    }
    const i64 num_blocks = static_cast<i64>(view.row_indptr.size()) - 1;
    const i64 lists = num_blocks * (view.per_kv_head ? spec.num_kv_heads : 1);
    check_size([&] { return name(v, "page_indptr"); }, view.page_indptr.size(), lists + 1,
               view.per_kv_head ? "row blocks times KV heads + 1" : "row blocks + 1");
    check_size(
        [&] { return name(v, "last_page_len"); }, view.last_page_len.size(),
        spec.kv_kind == KvKind::kRagged ? 0 : lists,
        spec.kv_kind == KvKind::kRagged ? "none for ragged K and V" : "one per list of pages");
    counts.num_lists += lists;
    blocks += num_blocks;
    counts.per_kv_head |= view.per_kv_head;
    counts.has_positions |= view.positions_at_run || !view.positions.empty();
    if (view.positions_at_run && batch.kv_len.empty() && counts.num_requests > 0) {
      refuse("kv_len (length)", 0, "one per request when positions are known at run time only");
    }
  }
  counts.blocks_used = counts.per_kv_head ? blocks * spec.num_kv_heads : blocks;
  return counts;
}

namespace {

/// kv_len of every request, from the last view or checked against it.
void resolve_lengths(const ViewPass& last, bool any_positions, i32* kv_len) {
  const Batch& batch = last.batch;
  const i64 num_requests = static_cast<i64>(batch.qo_indptr.size()) - 1;
  const bool given = !batch.kv_len.empty();
  if (!given && last.one_per_request && last.view.positions.empty()) {
    for (i64 r = 0; r < num_requests; ++r) {
      const RowBlock& record = last.records[r * last.lists];
      kv_len[r] = record.base_pos + record.num_slots;
    }
    return;
  }
  i64 b = 0;
  for (i64 r = 0; r < num_requests; ++r) {
    const i32 row_begin = batch.qo_indptr[static_cast<std::size_t>(r)];
    const i32 row_end = batch.qo_indptr[static_cast<std::size_t>(r) + 1];
    i64 end = 0;
    const bool direct = last.num_blocks == num_requests && row_begin == row_end;
    if (direct || last.one_per_request) {
      end = last.list_end(last.records[r * last.lists], r * last.lists);
    } else if (row_begin < row_end) {
      while (last.view.row_indptr[static_cast<std::size_t>(b) + 1] <= row_begin) ++b;
      // Every part of a request must fit into the length that the batch states.
      for (i64 p = b;
           p < last.num_blocks && last.view.row_indptr[static_cast<std::size_t>(p)] < row_end;
           ++p) {
        for (i32 h = 0; h < last.lists; ++h) {
          const i64 list = p * last.lists + h;
          end = std::max<i64>(end, last.list_end(last.records[list], list));
        }
      }
    }
    if (!given) {
      kv_len[r] = static_cast<i32>(end);
      continue;
    }
    const i32 length = batch.kv_len[static_cast<std::size_t>(r)];
    if (length < 0) refuse(at("kv_len", r), length, "a non-negative number");
    if (row_begin < row_end || direct || last.one_per_request) {
      if (any_positions ? (!last.view.positions_at_run && length < end) : length != end) {
        refuse(at("kv_len", r), length,
               (any_positions ? "at least the end of its keys, " : "the sum of its tokens, ") +
                   std::to_string(end));
      }
    }
    kv_len[r] = length;
  }
}

/// Keys of a view lie below the length of every request that sees them: those of an outer view (of
/// the last one it is known; where no view has positions it follows from the nesting of views), and
/// as many as are listed, where their positions are known at run time only.
void check_ends(const ViewPass& pass, const i32* kv_len) {
  const Batch& batch = pass.batch;
  for (i64 list = 0; list < pass.num_blocks * pass.lists; ++list) {
    const RowBlock& record = pass.records[list];
    if (record.num_slots == 0 || record.num_rows == 0) continue;
    const i32 end = pass.view.positions_at_run ? record.num_slots : pass.list_end(record, list);
    const i32 row_end = record.row_begin + record.num_rows;
    for (auto r = static_cast<std::size_t>(record.request);
         r + 1 < batch.qo_indptr.size() && batch.qo_indptr[r] < row_end; ++r) {
      if (batch.qo_indptr[r] == batch.qo_indptr[r + 1] || end <= kv_len[r]) continue;
      const std::string keys =
          "the " + std::to_string(kv_len[r]) + " keys of request " + std::to_string(r);
      if (pass.view.positions.empty()) {
        refuse(at(name(pass.index, "page_indptr"), list + 1), end, "tokens within " + keys);
      }
      const i32 last = pass.view.page_indptr[static_cast<std::size_t>(list) + 1] - 1;
      refuse(at(name(pass.index, "positions"), last),
             pass.view.positions[static_cast<std::size_t>(last)],
             "a page that ends within " + keys);
    }
  }
}

/// What depends on the lengths of requests: query positions, mask bits, RoPE table offsets.
class RequestPass {
 public:
  RequestPass(const AttentionSpec& spec, const Batch& batch, const i32* kv_len)
      : spec_(spec), batch_(batch), kv_len_(kv_len) {}

  void fill(RowBlock* begin, RowBlock* end, bool last_view) {
    const bool custom = spec_.mask == MaskKind::kCustom && last_view;
    const bool rope = spec_.rope.explicit_k_positions;
    i64 request = 0;
    i64 rope_begin = 0;
    i64 mask_byte = 0;
    const bool empty = batch_.qo_indptr.size() == 1;
    for (RowBlock* r = begin; r != end; ++r) {
      const std::size_t q = static_cast<std::size_t>(r->request);
      const i32 q_begin = empty ? 0 : batch_.qo_indptr[q];
      const i32 q_len = empty ? 0 : batch_.qo_indptr[q + 1] - q_begin;
      const i32 kv_len = empty ? 0 : kv_len_[q];
      r->kv_len = kv_len;
      r->pos0 = kv_len - q_len + (r->row_begin - q_begin);
      if (!custom && !rope) continue;
      for (; request < r->request; ++request) {
        const std::size_t p = static_cast<std::size_t>(request);
        rope_begin += kv_len_[p];
        if (custom) {
          mask_byte += mask_bytes(batch_.qo_indptr[p + 1] - batch_.qo_indptr[p], row_bits_);
        }
      }
      if (rope) {
        if (rope_begin > kMaxIndex) {
          refuse("rope.k_positions (length)", rope_begin, "fewer than 2^31 entries");
        }
        r->rope_k_begin = static_cast<i32>(rope_begin);
      }
      // A block without rows reads no bits, and may lie between the records of other requests.
      if (custom && r->num_rows > 0) fill_mask(*r, q_begin, mask_byte);
    }
  }

 private:
  static i64 mask_bytes(i64 rows, i64 bits) { return (rows * bits + 7) / 8; }

  void fill_mask(RowBlock& r, i32 q_begin, i64 mask_byte) {
    if ((r.flags & device::kBlockSpansRequests) != 0) {
      throw Error(ErrorCode::kUnsupported, "mask.kind", "custom",
                  "row blocks of the last view that span no requests");
    }
    // The mask covers the positions of the last level: all of them if there is one level only.
    row_bits_ = r.kv_len - r.base_pos;
    const i64 bit = mask_byte * 8 + i64{r.row_begin - q_begin} * row_bits_;
    r.mask_bit0_lo = static_cast<device::u32>(bit);
    r.mask_bit0_hi = static_cast<device::u32>(bit >> 32);
    r.mask_row_bits = row_bits_;
    r.mask_pos_base = r.kv_len - row_bits_;
    r.flags |= device::kBlockCustomMask;
  }

  const AttentionSpec& spec_;
  const Batch& batch_;
  const i32* kv_len_;
  i32 row_bits_ = 0;  // of the request whose records were filled last
};

}  // namespace

ResolvedBatch resolve_batch(const AttentionSpec& spec, const Batch& batch,
                            const BatchCounts& counts, RowBlock* blocks, i32* kv_len,
                            i32* parents) {
  ResolvedBatch result;
  check_indptr(batch.qo_indptr, [] { return std::string("qo_indptr"); });
  const std::size_t num_views = batch.views.size();
  const auto pass_of = [&](std::size_t v) {
    const View& view = batch.views[v];
    return ViewPass{spec,
                    batch,
                    view,
                    v,
                    blocks + result.view_begin[v],
                    view.per_kv_head ? spec.num_kv_heads : 1,
                    static_cast<i64>(view.row_indptr.size()) - 1,
                    same(view.row_indptr, batch.qo_indptr)};
  };
  if (batch::is_flat(spec, batch)) {
    pass_of(0).check_arrays();
    if (batch::resolve_flat(spec, batch, blocks, kv_len, &result.longest_kv)) {
      std::fill(result.view_begin + 1, std::end(result.view_begin),
                static_cast<i32>(counts.num_requests));
      if (parents != nullptr) std::fill_n(parents, counts.num_requests, -1);
      return result;
    }
  }
  bool positions_at_run = false;
  for (std::size_t v = 0; v < num_views; ++v) {
    const View& view = batch.views[v];
    const ViewPass pass = pass_of(v);
    pass.check_arrays();
    if (positions_at_run && view.positions.empty() && !view.positions_at_run) {
      refuse(name(v, "positions") + " (length)", 0,
             "positions after a view whose positions are known at run time only");
    }
    positions_at_run |= view.positions_at_run;
    i32* const view_parents = parents == nullptr ? nullptr : parents + result.view_begin[v];
    if (v == 0) {
      pass.resolve(nullptr, &result.spans_requests, view_parents);
    } else {
      const ViewPass outer = pass_of(v - 1);
      pass.resolve(&outer, &result.spans_requests, view_parents);
    }
    result.view_begin[v + 1] =
        result.view_begin[v] + static_cast<i32>(pass.num_blocks * pass.lists);
    if (v + 1 == num_views) {
      // A view that lists nothing cannot show whether it would have had positions.
      resolve_lengths(pass, counts.has_positions || view.page_indptr.back() == 0, kv_len);
    }
  }
  for (std::size_t v = num_views; v < static_cast<std::size_t>(kMaxViews); ++v) {
    result.view_begin[v + 1] = result.view_begin[v];
  }
  RequestPass requests(spec, batch, kv_len);
  for (std::size_t v = 0; v < num_views; ++v) {
    const bool outer = v + 1 < num_views && counts.has_positions;
    if (outer || batch.views[v].positions_at_run) check_ends(pass_of(v), kv_len);
    requests.fill(blocks + result.view_begin[v], blocks + result.view_begin[v + 1],
                  v + 1 == num_views);
  }
  result.longest_kv = 0;
  for (i64 r = 0; r < counts.num_requests; ++r) {
    result.longest_kv = std::max<i64>(result.longest_kv, kv_len[r]);
  }
  return result;
}

void validate(const AttentionSpec& spec, const Batch& batch) {
  const BatchCounts counts = count_batch(spec, batch);
  std::vector<RowBlock> blocks(static_cast<std::size_t>(counts.num_lists));
  std::vector<i32> kv_len(static_cast<std::size_t>(counts.num_requests));
  resolve_batch(spec, batch, counts, blocks.data(), kv_len.data(), nullptr);
}

}  // namespace plait
