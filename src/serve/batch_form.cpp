// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/batch_form.h"

#include <algorithm>

namespace plait::serve {
namespace {

std::int32_t last_page_len(std::int32_t tokens, std::int32_t page_size) {
  return tokens == 0 ? 0 : (tokens - 1) % page_size + 1;
}

std::int32_t to_i32(std::size_t value) { return static_cast<std::int32_t>(value); }

}  // namespace

void BatchForm::Lists::clear() {
  rows.assign(1, 0);
  pages.assign(1, 0);
  last.clear();
  ids.clear();
}

View BatchForm::Lists::view() const {
  View view;
  view.row_indptr = rows;
  view.page_indptr = pages;
  view.last_page_len = last;
  return view;
}

void BatchForm::build_rows(std::span<const StepEntry> entries) {
  qo_indptr_.assign(1, 0);
  for (const StepEntry& entry : entries) qo_indptr_.push_back(qo_indptr_.back() + entry.rows);
  for (Lists& lists : lists_) lists.clear();
}

void BatchForm::finish(int num_views) {
  for (int v = 0; v < num_views; ++v) views_[index(v)] = lists_[index(v)].view();
  batch_ = {};
  batch_.qo_indptr = qo_indptr_;
  batch_.views = std::span(views_).first(static_cast<std::size_t>(num_views));
}

void BatchForm::build_flat(const Scheduler& scheduler, std::span<const StepEntry> entries,
                           bool with_ids) {
  build_composed(scheduler, entries, {}, with_ids);
  // Without groups the prefix view lists nothing: the suffix view alone is the batch.
  std::swap(lists_[0], lists_[1]);
  finish(1);
}

void BatchForm::build_composed(const Scheduler& scheduler, std::span<const StepEntry> entries,
                               std::span<const PrefixGroup> groups, bool with_ids) {
  build_rows(entries);
  const std::int32_t page_size = scheduler.options().page_size;
  Lists& prefix = lists_[0];
  Lists& suffix = lists_[1];
  std::size_t next_group = 0;
  std::int32_t skipped_pages = 0;  // of the group that the current entry belongs to
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const StepEntry& entry = entries[i];
    const auto pages = scheduler.pages(entry.request);
    const bool opens = next_group < groups.size() && to_i32(i) == groups[next_group].begin;
    if (opens) {
      const PrefixGroup& group = groups[next_group++];
      skipped_pages = group.blocks * scheduler.pages_per_block();
      prefix.rows.push_back(qo_indptr_[static_cast<std::size_t>(group.end)]);
      prefix.pages.push_back(prefix.pages.back() + skipped_pages);
      prefix.last.push_back(page_size);
      if (with_ids) {
        const auto shared = pages.first(static_cast<std::size_t>(skipped_pages));
        prefix.ids.insert(prefix.ids.end(), shared.begin(), shared.end());
      }
    } else if (skipped_pages > 0 && to_i32(i) == groups[next_group - 1].end) {
      skipped_pages = 0;
    }
    const std::int32_t kv_len = entry.context + entry.rows;
    const std::int32_t used = (kv_len + page_size - 1) / page_size;
    suffix.rows.push_back(qo_indptr_[i + 1]);
    suffix.pages.push_back(suffix.pages.back() + used - skipped_pages);
    suffix.last.push_back(last_page_len(kv_len, page_size));
    if (with_ids) {
      suffix.ids.insert(suffix.ids.end(), pages.begin() + skipped_pages, pages.begin() + used);
    }
  }
  if (prefix.rows.back() < qo_indptr_.back()) {  // everyone else, in one row block without pages
    prefix.rows.push_back(qo_indptr_.back());
    prefix.pages.push_back(prefix.pages.back());
    prefix.last.push_back(0);
  }
  finish(2);
}

void BatchForm::build_ragged(std::span<const StepEntry> entries) {
  build_rows(entries);
  Lists& lists = lists_[0];
  for (std::size_t i = 0; i < entries.size(); ++i) {
    lists.rows.push_back(qo_indptr_[i + 1]);
    lists.pages.push_back(lists.pages.back() + entries[i].context + entries[i].rows);
  }
  finish(1);
}

}  // namespace plait::serve
