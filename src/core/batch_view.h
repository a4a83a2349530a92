// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// One view of a batch while it is resolved: its lists of pages, and its row blocks against those of
// the view outside and against requests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device/plan_layout.h"
#include "plait/batch.h"
#include "plait/spec.h"

namespace plait::batch {

inline constexpr std::int64_t kMaxIndex = INT32_MAX;

struct ViewPass {
  const AttentionSpec& spec;
  const Batch& batch;
  const View& view;
  std::size_t index;
  device::RowBlock* records;  // of this view
  std::int32_t lists;         // per row block
  std::int64_t num_blocks;
  bool one_per_request;

  /// The arrays against each other; their lengths were checked.
  void check_arrays() const;
  /// Fills slots, positions and request of each record, and zeros elsewhere. `outer` is null for
  /// the outermost view; sets `*spans` if a row block spans several requests, and `parents` if not
  /// null.
  void resolve(const ViewPass* outer, bool* spans, std::int32_t* parents) const;

  /// Logical position after the last key of a list.
  std::int32_t list_end(const device::RowBlock& record, std::int64_t list) const {
    if (record.num_slots == 0 || view.positions.empty()) {
      return record.base_pos + record.num_slots;
    }
    const auto l = static_cast<std::size_t>(list);
    const std::int32_t last_len = spec.kv_kind == KvKind::kPaged ? view.last_page_len[l] : 1;
    return view.positions[static_cast<std::size_t>(view.page_indptr[l + 1] - 1)] + last_len;
  }

 private:
  void check_positions(std::int64_t list, std::int64_t begin, std::int64_t end,
                       std::int32_t last) const;
  [[noreturn]] void refuse_last_page(std::int64_t list) const;
  std::int32_t place_rows(std::int64_t b, std::int64_t& request) const;
  /// The first list of row block `b` that ends elsewhere than head 0's; -1 if none does.
  std::int64_t list_apart(std::int64_t b) const;
  void check_heads(std::int64_t b) const;
  void check_start(const ViewPass& outer, std::int64_t parent, std::int64_t b) const;
};

}  // namespace plait::batch
