// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a batch means, derived naively for the verifier: nothing here is shared with the planner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plait/batch.h"
#include "plait/spec.h"

namespace plait::verification {

using i32 = std::int32_t;
using i64 = std::int64_t;

/// Slots [begin, end) of a list.
struct SlotRange {
  i64 begin = 0;
  i64 end = 0;
};

class BatchMeaning {
 public:
  BatchMeaning(const AttentionSpec& spec, const Batch& batch);

  i64 num_lists() const { return static_cast<i64>(lists_.size()); }
  i64 num_requests() const { return static_cast<i64>(kv_len_.size()); }
  /// Of a request, and for num_requests() the number of rows.
  i64 first_row(i64 request) const { return batch_.qo_indptr[static_cast<std::size_t>(request)]; }
  i64 total_q() const { return static_cast<i64>(row_request_.size()); }
  /// -1 if the batch leaves it open: a request without rows under several views.
  i64 kv_len(i64 request) const { return kv_len_[static_cast<std::size_t>(request)]; }
  i64 request_of(i64 row) const { return row_request_[static_cast<std::size_t>(row)]; }
  i64 position_of(i64 row) const;
  i64 mask_row_bits(i64 request) const { return mask_bits_[static_cast<std::size_t>(request)]; }
  i64 mask_first_bit(i64 request) const { return mask_begin_[static_cast<std::size_t>(request)]; }

  /// Record of the list that `row` reads for `head` in `view`.
  i64 list_of(std::size_t view, i64 row, i64 head) const;

  struct List {
    i64 view = 0, row_begin = 0, row_end = 0, page_begin = 0, slots = 0;
    i64 base = 0;          // logical position of slot 0 without positions
    i64 segment_base = 0;  // tokens of the outer views
    bool has_positions = false, at_run = false, spans = false;
  };
  const List& list(i64 record) const { return lists_[static_cast<std::size_t>(record)]; }

  /// Slots that `row` sees in a list, before any custom mask; all of them if positions are unknown.
  SlotRange visible(i64 record, i64 row) const;
  /// True if `row` certainly sees every slot of `range`, custom mask included.
  bool sees_all(i64 record, i64 row, SlotRange range) const;

 private:
  bool row_sees(i64 position, i64 row) const;
  i64 slot_position(const List& list, i64 slot) const;
  i64 list_end(const List& list) const;

  const AttentionSpec& spec_;
  const Batch& batch_;
  std::vector<List> lists_;
  std::vector<i64> view_begin_;
  std::vector<i64> row_request_;
  std::vector<std::vector<i64>> row_block_;  // per view
  std::vector<i64> kv_len_, mask_bits_, mask_begin_;
};

}  // namespace plait::verification
