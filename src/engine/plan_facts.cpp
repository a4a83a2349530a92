// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "engine/plan_facts.h"

#include <algorithm>
#include <string>

#include "plan/plan_words.h"

namespace plait::detail {
namespace {

/// Bytes of the packed custom mask: [qo_len][keys of the last level] bits per request, each on a
/// byte. Taken from the records that kernels read, so that they never read past it.
std::int64_t mask_bytes_of(std::span<const device::RowBlock> blocks) {
  std::int64_t bytes = 0;
  for (const device::RowBlock& block : blocks) {
    if ((block.flags & device::kBlockCustomMask) == 0) continue;
    const auto first =
        static_cast<std::int64_t>((std::uint64_t{block.mask_bit0_hi} << 32) | block.mask_bit0_lo);
    const std::int64_t end = first + std::int64_t{block.num_rows} * block.mask_row_bits;
    bytes = std::max(bytes, (end + 7) / 8);
  }
  return bytes;
}

/// Calls visit(request) for the requests that have rows in `block`.
template <class Visit>
void for_each_request(const PlanFacts& facts, const device::RowBlock& block, Visit visit) {
  const std::int32_t row_end = block.row_begin + block.num_rows;
  for (auto r = static_cast<std::size_t>(block.request);
       block.num_rows > 0 && r < facts.kv_len.size() && facts.qo_indptr[r] < row_end; ++r) {
    if (facts.qo_indptr[r] < facts.qo_indptr[r + 1]) visit(r);
  }
}

}  // namespace

PlanFacts facts_of(const Batch& batch, const AttentionSpec& spec, const Plan& plan,
                   std::size_t group, bool checked) {
  const std::int32_t* const words = plan.words.data();
  const device::GroupHeader& g = group_header(plan, group);
  PlanFacts facts;
  facts.total_q = g.total_q;
  for (std::int32_t r = 0; r < g.num_requests; ++r) {
    facts.total_kv_len += words[g.kv_len_offset + r];
  }
  facts.num_views = static_cast<std::int32_t>(batch.views.size());
  for (std::size_t v = 0; v < batch.views.size(); ++v) {
    facts.num_pages[v] = batch.views[v].page_indptr.back();
    facts.has_positions[v] = !batch.views[v].positions.empty() || batch.views[v].positions_at_run;
  }
  const std::span<const device::RowBlock> blocks{array_at<device::RowBlock>(plan, g.block_offset),
                                                 static_cast<std::size_t>(g.num_blocks)};
  if (spec.mask == MaskKind::kCustom) facts.mask_bytes = mask_bytes_of(blocks);
  if (checked) {
    facts.blocks.assign(blocks.begin(), blocks.end());
    facts.kv_len.assign(words + g.kv_len_offset, words + g.kv_len_offset + g.num_requests);
    facts.qo_indptr.assign(batch.qo_indptr.begin(), batch.qo_indptr.end());
    for (const View& view : batch.views) {
      facts.lists.push_back({{view.row_indptr.begin(), view.row_indptr.end()},
                             {view.page_indptr.begin(), view.page_indptr.end()},
                             view.per_kv_head ? spec.num_kv_heads : 1,
                             {view.positions.begin(), view.positions.end()}});
    }
  }
  return facts;
}

void check_page_ids(std::int32_t view, std::span<const std::int32_t> ids, std::int64_t num_pages) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= num_pages) {
      throw Error(ErrorCode::kInvalidArgument,
                  "page_ids[" + std::to_string(view) + "][" + std::to_string(i) + "]",
                  std::to_string(ids[i]), "a page id in [0, " + std::to_string(num_pages) + ")");
    }
  }
}

void check_positions(const PlanFacts& facts, std::int32_t page_size, std::int32_t view,
                     std::span<const std::int32_t> brought) {
  const std::vector<std::int32_t>& planned = facts.lists[static_cast<std::size_t>(view)].positions;
  const auto refuse = [&](ErrorCode code, std::size_t entry, std::string expected) {
    throw Error(code, "positions[" + std::to_string(view) + "][" + std::to_string(entry) + "]",
                std::to_string(brought[entry]), std::move(expected));
  };
  for (std::size_t i = 0; i < planned.size(); ++i) {
    if (brought[i] == planned[i]) continue;
    refuse(ErrorCode::kMismatch, i, "what the plan was made with, " + std::to_string(planned[i]));
  }
  if (!planned.empty()) return;
  for (const device::RowBlock& block : facts.blocks) {
    if (block.view != view) continue;
    for_each_request(facts, block, [&](std::size_t request) {
      for (std::int32_t slot = 0; slot < block.num_slots; slot += page_size) {
        const auto entry = static_cast<std::size_t>(block.page_begin + slot / page_size);
        const std::int32_t tokens = std::min(page_size, block.num_slots - slot);
        if (brought[entry] >= 0 && brought[entry] <= facts.kv_len[request] - tokens) continue;
        refuse(ErrorCode::kInvalidArgument, entry,
               "a page of " + std::to_string(tokens) + " tokens within the " +
                   std::to_string(facts.kv_len[request]) + " keys of request " +
                   std::to_string(request));
      }
    });
  }
}

void check_shared_rope_positions(const PlanFacts& facts, std::int32_t page_size,
                                 std::span<const std::vector<std::int32_t>> listed,
                                 std::span<const std::int32_t> rope) {
  std::vector<std::size_t> begin{0};
  for (const std::int32_t length : facts.kv_len) {
    begin.push_back(begin.back() + static_cast<std::size_t>(length));
  }
  for (const device::RowBlock& block : facts.blocks) {
    if ((block.flags & device::kBlockSpansRequests) == 0) continue;
    const std::vector<std::int32_t>& positions = listed[static_cast<std::size_t>(block.view)];
    for_each_request(facts, block, [&](std::size_t request) {
      for (std::int32_t slot = 0; slot < block.num_slots; ++slot) {
        const std::int32_t position =
            (block.flags & device::kBlockHasPositions) == 0
                ? block.base_pos + slot
                : positions[static_cast<std::size_t>(block.page_begin + slot / page_size)] +
                      slot % page_size;
        const std::size_t own = begin[request] + static_cast<std::size_t>(position);
        const std::size_t used = static_cast<std::size_t>(block.rope_k_begin + position);
        if (rope[own] == rope[used]) continue;
        throw Error(ErrorCode::kInvalidArgument, "k_rope_positions[" + std::to_string(own) + "]",
                    std::to_string(rope[own]) + " for key " + std::to_string(position) +
                        " of request " + std::to_string(request),
                    std::to_string(rope[used]) + ", as for request " +
                        std::to_string(block.request) + ", which shares this key");
      }
    });
  }
}

void check_duplicates(const PlanFacts& facts, std::span<const std::span<const std::int32_t>> ids) {
  // Two query rows see the same lists unless a boundary of some view lies between them, so one
  // probe per distinct boundary is enough.
  std::vector<std::int32_t> probes;
  std::int32_t max_lists = 1;
  for (const PlanFacts::Lists& lists : facts.lists) {
    probes.insert(probes.end(), lists.row_indptr.begin(), lists.row_indptr.end());
    max_lists = std::max(max_lists, lists.lists_per_block);
  }
  std::sort(probes.begin(), probes.end());
  probes.erase(std::unique(probes.begin(), probes.end()), probes.end());
  std::vector<std::int32_t> pages;
  for (const std::int32_t row : probes) {
    if (row >= facts.total_q) break;
    for (std::int32_t head = 0; head < max_lists; ++head) {
      pages.clear();
      for (std::size_t v = 0; v < facts.lists.size(); ++v) {
        const PlanFacts::Lists& lists = facts.lists[v];
        const auto upper = std::upper_bound(lists.row_indptr.begin(), lists.row_indptr.end(), row);
        const auto block = static_cast<std::size_t>(upper - lists.row_indptr.begin()) - 1;
        const auto list = block * static_cast<std::size_t>(lists.lists_per_block) +
                          static_cast<std::size_t>(lists.lists_per_block > 1 ? head : 0);
        for (std::int32_t i = lists.page_indptr[list]; i < lists.page_indptr[list + 1]; ++i) {
          pages.push_back(ids[v][static_cast<std::size_t>(i)]);
        }
      }
      std::sort(pages.begin(), pages.end());
      const auto twice = std::adjacent_find(pages.begin(), pages.end());
      if (twice != pages.end()) {
        throw Error(
            ErrorCode::kInvalidArgument, "page_ids",
            "page " + std::to_string(*twice) + " listed twice for query row " + std::to_string(row),
            "disjoint key sets: each page at most once per query");
      }
    }
  }
}

}  // namespace plait::detail
