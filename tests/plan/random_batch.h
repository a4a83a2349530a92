// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Random specs, batches and targets for the planner's properties. `Draw` asks RapidCheck for every
// choice, so that a failing case shrinks.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/owned_batch.h"
#include "plait/capacity.h"
#include "plait/spec.h"
#include "plan/planner.h"

namespace plait::test {

inline int draw(int low, int high) { return *rc::gen::inRange(low, high + 1); }
inline bool coin() { return draw(0, 1) == 1; }
inline int pick(std::initializer_list<int> values) {
  return *rc::gen::elementOf(std::vector<int>(values));
}

inline PlanTarget draw_target() {
  PlanTarget t;
  t.num_workers = pick({1, 2, 3, 7, 16, 33});
  t.num_classes = draw(1, 3);
  int q_tile = pick({4, 8, 16});
  for (int c = 0; c < t.num_classes; ++c) {
    t.classes[static_cast<std::size_t>(c)] = {
        q_tile,
        pick({8, 16, 32}),
        {pick({0, 50, 400}), pick({0, 7}), pick({1, 3, 9}), pick({0, 2, 20})},
        coin()};
    q_tile *= pick({2, 4});
  }
  t.shared_workers = coin();
  t.canonical = {pick({4, 16}), 16, {100, 5, 2, 3}};
  t.segment_tokens = pick({16, 32, 64});
  return t;
}

inline AttentionSpec draw_spec() {
  AttentionSpec s;
  s.num_kv_heads = draw(1, 3);
  s.num_qo_heads = s.num_kv_heads * pick({1, 2, 3, 4, 7});
  s.head_dim_qk = 64;
  s.head_dim_vo = 64;
  if (coin() && coin()) {
    s.kv_kind = KvKind::kRagged;
    s.page_size = 1;
  } else {
    s.page_size = pick({1, 3, 4, 5, 16, 48});
  }
  s.mask = static_cast<MaskKind>(draw(0, 2));
  s.window_left = coin() ? -1 : pick({0, 1, 5, 17, 40, 100});
  return s;
}

inline Policy draw_policy(const AttentionSpec& spec) {
  Policy p;
  p.kind = static_cast<PolicyKind>(draw(0, 3));
  if (p.kind == PolicyKind::kFixedChunk) p.kv_chunk = spec.page_size * draw(1, 12);
  p.balance = draw(0, 5) != 0;
  p.allow_write_through = draw(0, 4) != 0;
  p.tile_per_item = draw(0, 4) != 0;
  return p;
}

/// Appends positions for the last list of a view: increasing with gaps; returns the end position.
inline int add_positions(OwnedView& view, int page_size, int last_len, int start) {
  const std::size_t n = view.page_indptr.size();
  const int pages = view.page_indptr[n - 1] - view.page_indptr[n - 2];
  int next = start;
  for (int p = 0; p < pages; ++p) {
    next += pick({0, 0, 1, 7, 40});
    view.positions.push_back(next);
    next += p + 1 == pages ? last_len : page_size;
  }
  return next;
}

/// A batch with one view per level: nested row blocks, at most one of positions, head axis, parts.
inline OwnedBatch draw_batch(const AttentionSpec& spec, bool allow_positions_with_levels) {
  OwnedBatch batch;
  const int requests = draw(0, 5);
  std::vector<int> q_lens;
  for (int r = 0; r < requests; ++r) {
    q_lens.push_back(pick({0, 1, 1, 1, 2, 5, 9, 30, 70}));
    batch.qo_indptr.push_back(batch.qo_indptr.back() + q_lens.back());
  }
  const int total_q = batch.qo_indptr.back();
  const int levels = pick({1, 1, 2, 3});
  const int paged = spec.kv_kind == KvKind::kPaged ? spec.page_size : 0;
  // Boundaries of each level: subsets of the next one's, the last level's are the requests'.
  std::vector<std::vector<int>> bounds(static_cast<std::size_t>(levels));
  bounds.back().assign(batch.qo_indptr.begin(), batch.qo_indptr.end());
  for (int l = levels - 2; l >= 0; --l) {
    const auto& inner = bounds[static_cast<std::size_t>(l) + 1];
    auto& outer = bounds[static_cast<std::size_t>(l)];
    outer.push_back(0);
    for (std::size_t i = 1; i + 1 < inner.size(); ++i) {
      if (inner[i] > outer.back() && coin()) outer.push_back(inner[i]);
    }
    if (total_q > outer.back()) outer.push_back(total_q);
  }
  const bool parts = levels == 1 && spec.mask != MaskKind::kCustom && draw(0, 4) == 0;
  const bool positions = draw(0, 3) == 0 && (levels == 1 || allow_positions_with_levels);
  const bool at_run = positions && draw(0, 3) == 0;
  std::vector<int> ends(static_cast<std::size_t>(std::max(total_q, 1)), 0);
  for (int l = 0; l < levels; ++l) {
    OwnedView view;
    const bool last = l + 1 == levels;
    view.per_kv_head = last && draw(0, 4) == 0;
    const bool own_positions = last && (positions || parts);
    view.positions_at_run = own_positions && at_run;
    std::vector<int> rows(bounds[static_cast<std::size_t>(l)].begin(),
                          bounds[static_cast<std::size_t>(l)].end());
    if (last && parts) {
      for (int q = 1; q < total_q; ++q) {
        if (draw(0, 6) == 0) rows.push_back(q);
      }
      std::sort(rows.begin(), rows.end());
      rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
      if (rows.empty()) rows.push_back(0);
    }
    view.row_indptr.assign(rows.begin(), rows.end());
    for (std::size_t b = 0; b + 1 < rows.size(); ++b) {
      const int tokens = pick({0, 1, 3, 16, 17, 33, 64, 100, 250});
      const int lists = view.per_kv_head ? spec.num_kv_heads : 1;
      int end = rows[b] < rows[b + 1] ? ends[static_cast<std::size_t>(rows[b])] : 0;
      int furthest = end;
      for (int h = 0; h < lists; ++h) {
        const int own = own_positions && h > 0 ? pick({0, 5, 64, 120}) : tokens;
        view.add_list(own, paged);
        if (own_positions && !at_run) {
          const int last_len = paged == 0 ? 1 : view.last_page_len.back();
          furthest = std::max(furthest, add_positions(view, paged == 0 ? 1 : paged, last_len, end));
        } else {
          furthest = std::max(furthest, end + own);
        }
      }
      for (int q = rows[b]; q < rows[b + 1]; ++q) ends[static_cast<std::size_t>(q)] = furthest;
    }
    if (view.positions.empty() && own_positions && !at_run && view.page_indptr.back() == 0) {
      view.positions_at_run = false;
    }
    batch.views.push_back(view);
  }
  if (positions || parts || batch.views.back().positions_at_run) {
    for (int r = 0; r < requests; ++r) {
      int end = 0;
      for (int q = batch.qo_indptr[static_cast<std::size_t>(r)];
           q < batch.qo_indptr[static_cast<std::size_t>(r) + 1]; ++q) {
        end = std::max(end, ends[static_cast<std::size_t>(q)]);
      }
      // Requests that end later than their listed pages are common (unlisted tail pages). A row
      // block without rows may still list pages.
      batch.kv_len.push_back(end + pick({0, 0, 3}) +
                             6000 * (q_lens[static_cast<std::size_t>(r)] == 0));
    }
  }
  return batch;
}

inline std::string list_of(const std::vector<std::int32_t>& values) {
  std::string text = "[";
  for (std::int32_t v : values) text += (text.size() > 1 ? "," : "") + std::to_string(v);
  return text + "]";
}

/// Everything that a failing case is made of, as text.
inline std::string describe(const AttentionSpec& s, const Policy& p, const PlanTarget& t,
                            const OwnedBatch& b) {
  std::string text =
      "heads " + std::to_string(s.num_qo_heads) + "/" + std::to_string(s.num_kv_heads) + " page " +
      std::to_string(s.page_size) + (s.kv_kind == KvKind::kRagged ? " ragged" : " paged") +
      " mask " + std::to_string(static_cast<int>(s.mask)) + " window " +
      std::to_string(s.window_left) + " policy " + std::to_string(static_cast<int>(p.kind)) +
      " chunk " + std::to_string(p.kv_chunk) + " balance " + std::to_string(p.balance) +
      " write-through " + std::to_string(p.allow_write_through) + " tile-per-item " +
      std::to_string(p.tile_per_item) + " workers " + std::to_string(t.num_workers) + " pairs " +
      std::to_string(t.classes[0].pairs_heads) + std::to_string(t.classes[1].pairs_heads) +
      std::to_string(t.classes[2].pairs_heads) + " segment " + std::to_string(t.segment_tokens) +
      "\nqo " + list_of(b.qo_indptr) + " kv_len " + list_of(b.kv_len);
  for (const OwnedView& v : b.views) {
    text += "\nview rows " + list_of(v.row_indptr) + " pages " + list_of(v.page_indptr) + " last " +
            list_of(v.last_page_len) + " positions " + list_of(v.positions) +
            (v.positions_at_run ? " at run" : "") + (v.per_kv_head ? " per head" : "");
  }
  return text;
}

inline Capacity capacity_of(const AttentionSpec& spec, const OwnedBatch& batch,
                            const Policy& policy) {
  Capacity c;
  c.max_requests = static_cast<std::int64_t>(batch.qo_indptr.size()) - 1;
  c.max_query_rows = batch.qo_indptr.back();
  std::int64_t blocks = 0;
  bool per_head = false;
  for (const OwnedView& v : batch.views) {
    blocks += static_cast<std::int64_t>(v.row_indptr.size()) - 1;
    per_head |= v.per_kv_head;
  }
  c.max_row_blocks = std::max<std::int64_t>(1, per_head ? blocks * spec.num_kv_heads : blocks);
  c.max_views = static_cast<std::int32_t>(batch.views.size());
  c.max_kv_tokens = 20000;
  c.min_kv_chunk = policy.kv_chunk;
  return c;
}

}  // namespace plait::test
