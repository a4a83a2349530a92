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

/// Row blocks of one level: its groups, and between them blocks without pages that end wherever a
/// block of the outer level does.
void BatchForm::add_level(const Scheduler& scheduler, std::span<const StepEntry> entries,
                          const Composer& composer, std::int32_t level, bool with_ids) {
  Lists& lists = lists_[index(level)];
  const auto groups = composer.groups();
  const auto of_level = [&](const PrefixGroup& group) { return group.level == level; };
  const auto first = std::find_if(groups.begin(), groups.end(), of_level);
  const auto last = std::find_if_not(first, groups.end(), of_level);
  if (level == 0) bounds_ = {0, to_i32(entries.size())};
  for (auto group = first; group != last; ++group) {
    bounds_.insert(bounds_.end(), {group->begin, group->end});
  }
  std::sort(bounds_.begin(), bounds_.end());
  bounds_.erase(std::unique(bounds_.begin(), bounds_.end()), bounds_.end());
  auto group = first;
  for (std::size_t i = 0; i + 1 < bounds_.size(); ++i) {
    std::int32_t pages = 0;
    if (group != last && group->begin == bounds_[i]) {
      const std::int32_t per_block = scheduler.pages_per_block();
      pages = (group->last_block - group->first_block) * per_block;
      if (with_ids) {
        const std::int32_t member = entries[static_cast<std::size_t>(group->begin)].request;
        const auto shared = scheduler.pages(member).subspan(
            static_cast<std::size_t>(group->first_block * per_block),
            static_cast<std::size_t>(pages));
        lists.ids.insert(lists.ids.end(), shared.begin(), shared.end());
      }
      ++group;
    }
    lists.rows.push_back(qo_indptr_[static_cast<std::size_t>(bounds_[i + 1])]);
    lists.pages.push_back(lists.pages.back() + pages);
    lists.last.push_back(pages == 0 ? 0 : scheduler.options().page_size);
  }
}

/// What each request reads alone: everything without a composer.
void BatchForm::add_own(const Scheduler& scheduler, std::span<const StepEntry> entries,
                        const Composer* composer, std::int32_t view, bool with_ids) {
  Lists& lists = lists_[index(view)];
  const std::int32_t page_size = scheduler.options().page_size;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const StepEntry& entry = entries[i];
    const std::int32_t read =
        composer == nullptr ? 0 : composer->blocks_read(to_i32(i)) * scheduler.pages_per_block();
    const std::int32_t kv_len = entry.context + entry.rows;
    const std::int32_t used = (kv_len + page_size - 1) / page_size;
    lists.rows.push_back(qo_indptr_[i + 1]);
    lists.pages.push_back(lists.pages.back() + used - read);
    lists.last.push_back(last_page_len(kv_len, page_size));
    if (with_ids) {
      const auto pages = scheduler.pages(entry.request);
      lists.ids.insert(lists.ids.end(), pages.begin() + read, pages.begin() + used);
    }
  }
}

void BatchForm::build_flat(const Scheduler& scheduler, std::span<const StepEntry> entries,
                           bool with_ids) {
  build_rows(entries);
  add_own(scheduler, entries, nullptr, 0, with_ids);
  finish(1);
}

void BatchForm::build_composed(const Scheduler& scheduler, std::span<const StepEntry> entries,
                               const Composer& composer, bool with_ids) {
  build_rows(entries);
  const std::int32_t levels = composer.num_levels();
  for (std::int32_t level = 0; level < levels; ++level) {
    add_level(scheduler, entries, composer, level, with_ids);
  }
  add_own(scheduler, entries, &composer, levels, with_ids);
  finish(levels + 1);
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
