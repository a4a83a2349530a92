// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Plans in the layout of src/core/device/plan_layout.h, made without the planner.
#pragma once

#include "problem.h"

struct Item {
  int request, head, fused_begin, rows, kv_begin, kv_end, worker;
  long long cost;
};

struct BuiltPlan {
  std::vector<int> words;
  int state_rows = 0, counters = 0, items = 0;
};

struct Layout {
  std::vector<int> q_begin, page_begin, page_ids, used_tokens;
  int total_q = 0, num_pages = 0, total_kv = 0;
};

Layout make_layout(const Problem& p, std::mt19937& rng) {
  Layout l;
  int pages = 0;
  for (std::size_t b = 0; b < p.qo_len.size(); ++b) {
    l.q_begin.push_back(l.total_q);
    l.total_q += p.qo_len[b];
    l.page_begin.push_back(p.page_size == 0 ? l.total_kv : pages);
    l.total_kv += p.kv_len[b];
    if (p.page_size > 0) pages += (p.kv_len[b] + p.page_size - 1) / p.page_size;
  }
  if (p.page_size > 0) {
    l.num_pages = pages + 3;
    std::vector<int> ids(static_cast<std::size_t>(l.num_pages));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), rng);
    l.page_ids.assign(ids.begin(), ids.begin() + pages);
    l.used_tokens.assign(static_cast<std::size_t>(l.num_pages), 0);
    int at = 0;
    for (std::size_t b = 0; b < p.qo_len.size(); ++b) {
      for (int left = p.kv_len[b]; left > 0; left -= p.page_size) {
        l.used_tokens[static_cast<std::size_t>(l.page_ids[static_cast<std::size_t>(at++)])] =
            std::min(left, p.page_size);
      }
    }
  }
  return l;
}

BuiltPlan build_plan(const Problem& p, const Layout& l, bool decode, int workers) {
  const int group = p.num_qo_heads / p.num_kv_heads;
  const int q_tile = decode ? hop::kDecodeRows : hop::kPrefillRows;
  std::vector<Item> items;
  for (std::size_t b = 0; b < p.qo_len.size(); ++b) {
    for (int head = 0; head < p.num_kv_heads; ++head) {
      for (int row = 0; row < p.qo_len[b] * group; row += q_tile) {
        const int rows = std::min(q_tile, p.qo_len[b] * group - row);
        const int last_pos = (row + rows - 1) / group + p.kv_len[b] - p.qo_len[b];
        const int first_pos = row / group + p.kv_len[b] - p.qo_len[b];
        int end = p.causal ? std::min(p.kv_len[b], last_pos + 1) : p.kv_len[b];
        end = std::max(end, 0);
        const int begin = p.window >= 0 ? std::max(0, first_pos - p.window) : 0;
        items.push_back({static_cast<int>(b), head, l.q_begin[b] * group + row, rows,
                         std::min(begin, end), end, 0, 0});
      }
    }
  }
  const int unsplit = static_cast<int>(items.size());
  std::vector<std::vector<int>> parts(items.size());  // original -> items
  std::vector<Item> out;
  std::vector<std::vector<int>> per_worker(static_cast<std::size_t>(workers));
  const int item_cost = 96;  // tokens
  if (decode) {
    // Workers take consecutive stretches of the items' tokens, all of one length: the shortest for
    // which the workers suffice.
    const auto assign = [&](long long quota, bool keep) {
      int worker = 0;
      long long left = quota;
      for (int i = 0; i < unsplit; ++i) {
        const Item& it = items[static_cast<std::size_t>(i)];
        int begin = it.kv_begin;
        do {
          const int rest = it.kv_end - begin;
          long long take = std::max<long long>(left - item_cost, 0) / 16 * 16;
          if (take < std::min(rest, p.min_chunk)) {  // not worth starting
            ++worker;
            left = quota;
            if (worker >= workers && !keep) return false;
            continue;
          }
          if (rest - take < p.min_chunk) take = rest;
          Item piece = it;
          piece.kv_begin = begin;
          piece.kv_end = begin + static_cast<int>(std::min<long long>(take, rest));
          if (piece.kv_end < it.kv_end) piece.kv_end = piece.kv_end / 16 * 16;
          begin = piece.kv_end;
          left -= piece.kv_end - piece.kv_begin + item_cost;
          if (!keep) continue;
          parts[static_cast<std::size_t>(i)].push_back(static_cast<int>(out.size()));
          per_worker[static_cast<std::size_t>(worker)].push_back(static_cast<int>(out.size()));
          out.push_back(piece);
        } while (begin < it.kv_end);
      }
      return true;
    };
    long long low = p.min_chunk + item_cost, high = 1LL << 40;
    while (low < high) {
      const long long middle = (low + high) / 2;
      if (assign(middle, false)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    assign(low, true);
  } else {
    for (int i = 0; i < unsplit; ++i) {
      const Item it = items[static_cast<std::size_t>(i)];
      int begin = it.kv_begin;
      do {
        Item piece = it;
        piece.kv_begin = begin;
        if (p.split_prefill > 0) piece.kv_end = std::min(it.kv_end, begin + p.split_prefill);
        begin = piece.kv_end;
        piece.cost = (piece.kv_end - piece.kv_begin + 127) / 128 * 128 + 192;
        parts[static_cast<std::size_t>(i)].push_back(static_cast<int>(out.size()));
        out.push_back(piece);
      } while (begin < it.kv_end);
    }
    std::vector<int> order(out.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return out[static_cast<std::size_t>(a)].cost > out[static_cast<std::size_t>(b)].cost;
    });
    using Load = std::pair<long long, int>;
    std::priority_queue<Load, std::vector<Load>, std::greater<>> heap;
    for (int w = 0; w < workers; ++w) heap.push({0, w});
    for (int i : order) {
      Load top = heap.top();
      heap.pop();
      per_worker[static_cast<std::size_t>(top.second)].push_back(i);
      top.first += out[static_cast<std::size_t>(i)].cost;
      heap.push(top);
    }
  }

  // the blob
  BuiltPlan plan;
  plan.items = static_cast<int>(out.size());
  std::vector<pd::RowBlock> blocks;
  for (std::size_t b = 0; b < p.qo_len.size(); ++b) {
    pd::RowBlock block{};
    block.row_begin = l.q_begin[b];
    block.num_rows = p.qo_len[b];
    block.page_begin = l.page_begin[b];
    block.num_slots = p.kv_len[b];
    block.pos0 = p.kv_len[b] - p.qo_len[b];
    block.request = static_cast<int>(b);
    block.flags = p.page_size == 0 ? pd::kBlockRagged : 0;
    block.kv_len = p.kv_len[b];
    blocks.push_back(block);
  }
  std::vector<pd::Piece> pieces(out.size());
  std::vector<pd::Run> runs(out.size());
  std::vector<pd::Merge> merges;
  std::vector<pd::StateRef> refs;
  for (int i = 0; i < unsplit; ++i) {
    const auto& list = parts[static_cast<std::size_t>(i)];
    const bool split = list.size() > 1;
    for (int id : list) {
      const Item& it = out[static_cast<std::size_t>(id)];
      const auto b = static_cast<std::size_t>(it.request);
      const int first_pos = it.fused_begin / group - l.q_begin[b] + p.kv_len[b] - p.qo_len[b];
      const int last_pos =
          (it.fused_begin + it.rows - 1) / group - l.q_begin[b] + p.kv_len[b] - p.qo_len[b];
      int full_end = p.causal ? std::min(it.kv_end, first_pos + 1) : it.kv_end;
      int full_begin = p.window >= 0 ? std::max(it.kv_begin, last_pos - p.window) : it.kv_begin;
      if (full_end < full_begin) full_end = full_begin = it.kv_begin;
      pieces[static_cast<std::size_t>(id)] = {it.request, it.kv_begin, it.kv_end, full_begin,
                                              full_end};
      pd::Run run{};
      run.fused_row_begin = it.fused_begin;
      run.num_fused_rows = it.rows;
      run.head_begin = it.head;
      run.head_count = 1;
      run.piece_begin = id;
      run.num_pieces = 1;
      run.state_begin = split ? plan.state_rows : -1;
      run.merge_begin = static_cast<int>(merges.size());
      run.num_merges = split ? 1 : 0;
      if (split) {
        refs.push_back({plan.state_rows, 0});
        plan.state_rows += it.rows;
      }
      runs[static_cast<std::size_t>(id)] = run;
    }
    if (split) {
      const Item& it = out[static_cast<std::size_t>(list[0])];
      pd::Merge merge{};
      merge.fused_row_begin = it.fused_begin;
      merge.num_fused_rows = it.rows;
      merge.head_begin = it.head;
      merge.head_count = 1;
      merge.ref_begin = static_cast<int>(refs.size() - list.size());
      merge.num_refs = static_cast<int>(list.size());
      merge.counter_begin = plan.counters++;
      merges.push_back(merge);
    }
  }
  std::vector<int> indptr{0};
  std::vector<pd::Slice> slices;
  for (int w = 0; w < workers; ++w) {
    for (int i : per_worker[static_cast<std::size_t>(w)]) slices.push_back({i, 0, 1});
    indptr.push_back(static_cast<int>(slices.size()));
  }
  auto& words = plan.words;
  words.resize((sizeof(pd::PlanHeader) + sizeof(pd::GroupHeader)) / 4);
  auto append = [&](const auto& vector) {
    while (words.size() % 4 != 0) words.push_back(0);
    const int at = static_cast<int>(words.size());
    const std::size_t bytes = vector.size() * sizeof(vector[0]);
    words.resize(words.size() + bytes / 4);
    std::memcpy(words.data() + at, vector.data(), bytes);
    return at;
  };
  pd::PlanHeader header{};
  header.magic = pd::kPlanMagic;
  header.version = pd::kPlanVersion;
  header.num_groups = 1;
  header.group_offset[0] = sizeof(pd::PlanHeader) / 4;
  pd::GroupHeader group_header{};
  group_header.num_requests = static_cast<int>(p.qo_len.size());
  group_header.total_q = l.total_q;
  group_header.num_classes = 1;
  group_header.block_offset = append(blocks);
  group_header.piece_offset = append(pieces);
  group_header.run_offset = append(runs);
  group_header.merge_offset = append(merges);
  group_header.ref_offset = append(refs);
  group_header.row_pos_offset = -1;
  pd::ClassHeader& c = group_header.classes[0];
  c.q_tile = q_tile;
  c.kv_tile = decode ? 16 : 128;
  c.num_workers = workers;
  c.worker_offset = append(indptr);
  c.slice_offset = append(slices);
  c.num_slices = static_cast<int>(slices.size());
  header.total_words = static_cast<int>(words.size());
  std::memcpy(words.data(), &header, sizeof header);
  std::memcpy(words.data() + header.group_offset[0], &group_header, sizeof group_header);
  return plan;
}
