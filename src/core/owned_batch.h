// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A Batch that owns its arrays, for callers that build one (lowerings, corpus, tests).
#pragma once

#include <cstdint>
#include <vector>

#include "plait/batch.h"

namespace plait {

struct OwnedView {
  std::vector<std::int32_t> row_indptr{0};
  std::vector<std::int32_t> page_indptr{0};
  std::vector<std::int32_t> last_page_len;
  std::vector<std::int32_t> positions;
  bool positions_at_run = false;
  bool per_kv_head = false;

  /// Appends a list of `tokens` tokens; `page_size` 0 means ragged.
  void add_list(std::int64_t tokens, std::int32_t page_size) {
    const std::int64_t step = page_size == 0 ? 1 : page_size;
    const std::int64_t pages = (tokens + step - 1) / step;
    page_indptr.push_back(page_indptr.back() + static_cast<std::int32_t>(pages));
    if (page_size == 0) return;
    last_page_len.push_back(
        pages == 0 ? 0 : static_cast<std::int32_t>(tokens - (pages - 1) * page_size));
  }
};

struct OwnedBatch {
  std::vector<std::int32_t> qo_indptr{0};
  std::vector<OwnedView> views;
  std::vector<std::int32_t> kv_len;

  /// The batch over these arrays; valid until they change or `get` is called again.
  const Batch& get() {
    view_storage_.clear();
    for (const OwnedView& v : views) {
      View view;
      view.row_indptr = v.row_indptr;
      view.page_indptr = v.page_indptr;
      view.last_page_len = v.last_page_len;
      view.positions = v.positions;
      view.positions_at_run = v.positions_at_run;
      view.per_kv_head = v.per_kv_head;
      view_storage_.push_back(view);
    }
    batch_.qo_indptr = qo_indptr;
    batch_.views = view_storage_;
    batch_.kv_len = kv_len;
    return batch_;
  }

 private:
  std::vector<View> view_storage_;
  Batch batch_;
};

}  // namespace plait
