// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "core/owned_batch.h"

namespace plait::test {

/// Requests of (query rows, keys), each with a page list of its own, in one view.
inline OwnedBatch paged_batch(const std::vector<std::pair<int, int>>& requests, int page_size) {
  OwnedBatch batch;
  OwnedView view;
  for (const auto& [rows, keys] : requests) {
    batch.qo_indptr.push_back(batch.qo_indptr.back() + rows);
    view.add_list(keys, page_size);
  }
  view.row_indptr = batch.qo_indptr;
  batch.views.push_back(std::move(view));
  return batch;
}

}  // namespace plait::test
