// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Writes the plan's blob section by section. Sections start at multiples of 16 bytes (row blocks:
// 64), and the gaps are zeroed, so that equal plans are equal bytes.
#pragma once

#include "plan/task.h"

namespace plait::planning {

class BlobWriter {
 public:
  BlobWriter(i32* words, i64 capacity) : words_(words), capacity_(capacity) {}

  /// Opens a section of `count` records of T at the end; returns its offset in words. `T` is made
  /// of 32-bit words.
  template <class T>
  i32 open(i64 count, i64 alignment_words = 4) {
    const i64 begin = (at_ + alignment_words - 1) / alignment_words * alignment_words;
    const i64 end = begin + count * static_cast<i64>(sizeof(T) / 4);
    if (end > capacity_) overflow(end);
    while (at_ < begin) words_[at_++] = 0;
    at_ = end;
    return static_cast<i32>(begin);
  }
  template <class T>
  T* at(i32 offset) const {
    return reinterpret_cast<T*>(words_ + offset);
  }
  i64 size() const { return at_; }

 private:
  [[noreturn]] void overflow(i64 need) const;

  i32* words_;
  i64 capacity_;
  i64 at_ = 0;
};

struct Assigned;

/// Scratch memory of one planner, carved from one ledger; arrays are reused group by group.
struct Scratch {
  Task* tasks = nullptr;                // [tiles]
  i32* view_begin = nullptr;            // [heads * (views + 1)]
  i32* kv_len = nullptr;                // [requests]
  i32* parents = nullptr;               // [blocks]
  i64* run_cost = nullptr;              // [runs]
  i32* class_runs = nullptr;            // [runs]
  i32* order = nullptr;                 // [runs]
  i32* half_sorted = nullptr;           // [runs]
  std::uint16_t* run_keys = nullptr;    // [runs]
  std::uint8_t* run_class = nullptr;    // [runs]
  i64* lane_cost = nullptr;             // [tiles + classes]
  i32* lane_task = nullptr;             // [tiles + classes]
  i32* run_team = nullptr;              // [runs + workers]
  i32* cuts = nullptr;                  // [runs + workers]
  i64* loads = nullptr;                 // [workers]
  i32* workers = nullptr;               // [workers]
  std::uint8_t* worker_keys = nullptr;  // [workers]
  Assigned* assigned = nullptr;         // [items]
};

}  // namespace plait::planning
