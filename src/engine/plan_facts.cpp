// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "engine/plan_facts.h"

#include <algorithm>
#include <string>

namespace plait::detail {
namespace {

/// Tokens of a view's list that covers query row `row`, for a view without positions.
std::int64_t tokens_at_row(const AttentionSpec& spec, const View& view, std::int32_t row) {
  const auto upper = std::upper_bound(view.row_indptr.begin(), view.row_indptr.end(), row);
  const auto block = static_cast<std::size_t>(upper - view.row_indptr.begin()) - 1;
  const std::int64_t pages =
      static_cast<std::int64_t>(view.page_indptr[block + 1]) - view.page_indptr[block];
  if (spec.kv_kind == KvKind::kRagged) return pages;
  return pages == 0 ? 0 : (pages - 1) * spec.page_size + view.last_page_len[block];
}

/// Bytes of the packed custom mask: [qo_len][mask_kv_len] bits per request, each on a byte. The
/// mask of a cascade covers the last level only.
std::int64_t mask_bytes_of(const AttentionSpec& spec, const Batch& batch,
                           std::span<const std::int32_t> kv_len) {
  if (spec.mask != MaskKind::kCustom) return 0;
  std::int64_t bytes = 0;
  for (std::size_t r = 0; r + 1 < batch.qo_indptr.size(); ++r) {
    const std::int32_t row = batch.qo_indptr[r];
    const std::int64_t qo_len = static_cast<std::int64_t>(batch.qo_indptr[r + 1]) - row;
    if (qo_len == 0) continue;
    const std::int64_t bits_per_row =
        batch.views.size() > 1 ? tokens_at_row(spec, batch.views.back(), row) : kv_len[r];
    bytes += (qo_len * bits_per_row + 7) / 8;
  }
  return bytes;
}

}  // namespace

PlanFacts facts_of(const AttentionSpec& spec, const Batch& batch,
                   std::span<const std::int32_t> plan_kv_len, bool checked) {
  PlanFacts facts;
  facts.total_q = batch.qo_indptr.back();
  for (const std::int32_t len : plan_kv_len) facts.total_kv_len += len;
  facts.num_views = static_cast<std::int32_t>(batch.views.size());
  for (std::size_t v = 0; v < batch.views.size(); ++v) {
    facts.num_pages[v] = batch.views[v].page_indptr.back();
    facts.has_positions[v] = !batch.views[v].positions.empty() || batch.views[v].positions_at_run;
  }
  facts.mask_bytes = mask_bytes_of(spec, batch, plan_kv_len);
  if (checked) {
    facts.qo_indptr.assign(batch.qo_indptr.begin(), batch.qo_indptr.end());
    for (const View& view : batch.views) {
      facts.lists.push_back({{view.row_indptr.begin(), view.row_indptr.end()},
                             {view.page_indptr.begin(), view.page_indptr.end()},
                             view.per_kv_head ? spec.num_kv_heads : 1});
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
