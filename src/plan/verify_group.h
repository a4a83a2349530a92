// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What certifies one layer group of a plan. Reads the blob and the batch, and nothing that the
// planner computed on the way.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plait/error.h"
#include "plan/planner.h"
#include "plan/verify_view.h"

namespace plait::verification {

class GroupVerifier {
 public:
  GroupVerifier(const AttentionSpec& spec, const Batch& batch, std::span<const i32> words,
                const device::GroupHeader& header, const PlanBounds& bounds, std::size_t index);

  void verify();

 private:
  struct StateOwner;
  struct Use {  // of keys, by an item
    i64 block, begin, end;
    std::size_t run;
  };

  [[noreturn]] void fail(const std::string& what, i64 value, const std::string& expected) const;
  void require(bool ok, const std::string& what, i64 value, const char* expected) const {
    if (!ok) fail(what, value, expected);
  }
  static std::string nth(const char* what, i64 i) { return std::string(what) + std::to_string(i); }

  template <class T>
  std::span<const T> section(i32 offset, i32 count, const char* what) const {
    const i64 end = i64{offset} + i64{count} * static_cast<i64>(sizeof(T) / 4);
    if (offset < 0 || count < 0 || end > static_cast<i64>(words_.size())) {
      fail(what, end, "a section inside the blob");
    }
    return {reinterpret_cast<const T*>(words_.data() + offset), static_cast<std::size_t>(count)};
  }

  void check_bounds() const;
  void check_blocks() const;
  void check_assignment();
  void check_starts() const;
  void check_runs() const;
  void check_piece(const device::Run& run, const device::Piece& piece,
                   const std::string& name) const;
  void check_tiles(const device::Run& run, i64 tile, const std::string& name) const;
  void check_states() const;
  void claim_states(std::size_t index, std::vector<StateOwner>& owners) const;
  void check_merge(std::size_t index, std::vector<StateOwner>& owners,
                   std::vector<char>& counter) const;
  void check_merge_range(const device::Run& run, std::size_t index) const;
  std::pair<i64, i64> order_of(const device::Run& run) const;
  void check_coverage(i32 head) const;
  void check_row(i64 fused, i32 head, std::vector<Use> uses, const std::string& name) const;
  void check_segments(i64 row, const std::vector<Use>& uses, const std::string& name) const;

  const AttentionSpec& spec_;
  BatchMeaning meaning_;
  std::span<const i32> words_;
  const device::GroupHeader& header_;
  const PlanBounds& bounds_;
  std::size_t index_;
  i64 group_size_;
  i64 fused_rows_;
  std::span<const device::RowBlock> blocks_;
  std::span<const device::Piece> pieces_;
  std::span<const device::Run> runs_;
  std::span<const device::Merge> merges_;
  std::span<const device::StateRef> refs_;
  std::vector<i64> run_tile_;  // KV tile of the class that each run's items belong to
};

}  // namespace plait::verification
