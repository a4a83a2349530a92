// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A step as the library's Batch: flat (a page table per request), composed (a view for each level
// of shared prefixes and one for the requests' own keys), or ragged (contiguous K and V). All forms
// of a step list its requests in the same order, so that they share the query tensor.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "plait/batch.h"
#include "serve/compose.h"
#include "serve/scheduler.h"

namespace plait::serve {

/// Owns the arrays that a Batch points into; reused from step to step.
class BatchForm {
 public:
  /// One view, one row block per request. Page ids are listed only `with_ids`; plans need counts.
  void build_flat(const Scheduler& scheduler, std::span<const StepEntry> entries, bool with_ids);
  /// One view per level of `composer`'s groups, then one of what each request reads alone. Entries
  /// are in composer.order().
  void build_composed(const Scheduler& scheduler, std::span<const StepEntry> entries,
                      const Composer& composer, bool with_ids);
  /// One ragged view: request r owns tokens [sum of earlier kv_len, + kv_len).
  void build_ragged(std::span<const StepEntry> entries);

  const Batch& batch() const noexcept { return batch_; }
  int num_views() const noexcept { return static_cast<int>(batch_.views.size()); }
  std::span<const std::int32_t> page_indptr(int view) const { return lists_[index(view)].pages; }
  std::span<const std::int32_t> page_ids(int view) const { return lists_[index(view)].ids; }

 private:
  struct Lists {
    std::vector<std::int32_t> rows;   // row_indptr
    std::vector<std::int32_t> pages;  // page_indptr
    std::vector<std::int32_t> last;   // last_page_len
    std::vector<std::int32_t> ids;
    void clear();
    View view() const;
  };
  static std::size_t index(int view) { return static_cast<std::size_t>(view); }
  void build_rows(std::span<const StepEntry> entries);
  void add_level(const Scheduler& scheduler, std::span<const StepEntry> entries,
                 const Composer& composer, std::int32_t level, bool with_ids);
  void add_own(const Scheduler& scheduler, std::span<const StepEntry> entries,
               const Composer* composer, std::int32_t view, bool with_ids);
  void finish(int num_views);

  std::vector<std::int32_t> qo_indptr_;
  std::vector<std::int32_t> bounds_;  // entries at which row blocks of a level begin and end
  std::array<Lists, kMaxViews> lists_;
  std::array<View, kMaxViews> views_;
  Batch batch_;
};

}  // namespace plait::serve
