// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// plan(views, lengths, device facts, policy) -> Plan: a pure host function. No CUDA, no global
// state, no heap allocation in steady state, integer costs, identical bytes from every compiler.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device/plan_layout.h"
#include "plait/attention.h"

namespace plait {

inline constexpr std::int32_t kCostUnitsPerNs = 16;

/// CostModel::headroom of a class that shares nothing.
inline constexpr std::int32_t kNoHeadroom = 16;

/// Predicted cost of an item, in units of 1/16 ns so that small items stay distinguishable:
/// per_item + per_tile * KV tiles + per_kv_token * KV tokens + per_state_row * rows of partial
/// state. These four are in [0, 2^24].
struct CostModel {
  std::int32_t per_item = 0;       // fixed cost of starting one
  std::int32_t per_tile = 0;       // per KV tile of the item
  std::int32_t per_kv_token = 0;   // per KV token of the item
  std::int32_t per_state_row = 0;  // per row of partial state written (and merged)
  /// Sixteenths, in [16, 2^12]: how much faster a KV token is for a worker that reads while no
  /// other does. Above 16 for classes that are bound by memory.
  std::int32_t headroom = kNoHeadroom;
};

struct TileClass {
  std::int32_t q_tile = 0;   // fused rows
  std::int32_t kv_tile = 0;  // tokens
  CostModel cost;
  /// Its kernel computes two heads of a run at once where a worker has both, which is cheaper than
  /// one after the other.
  bool pairs_heads = false;
};

/// What the planner knows of a device and of the kernels that will run there.
struct PlanTarget {
  std::int32_t num_workers = 1;  // persistent CTAs, or threads
  std::int32_t num_classes = 1;  // ascending q_tile
  std::array<TileClass, device::kMaxClasses> classes{};
  /// True: a worker executes its lists of all classes one after the other (CPU threads), and loads
  /// are balanced over the classes together. False: classes run side by side (forked branches), and
  /// each gets its own share of num_workers, at least one if it has work.
  bool shared_workers = false;
  std::int32_t segment_tokens = 1024;  // canonical segments, a multiple of canonical.kv_tile
  TileClass canonical;                 // the one tile family of batch_invariant plans
};

struct ClassSummary {
  std::int32_t q_tile = 0;
  std::int32_t num_workers = 0;
  std::int64_t num_items = 0;
  std::int64_t largest_load = 0;
  std::int64_t total_load = 0;
  std::int64_t largest_item = 0;
};

struct GroupSummary {
  PlanSummary totals;
  std::int32_t num_classes = 0;
  std::array<ClassSummary, device::kMaxClasses> classes{};
  std::int64_t num_state_rows = 0;
  std::int64_t num_merges = 0;
  /// What one item, arriving last at all its merges, would have to merge, in states of a row: the
  /// states of each row, and kRowInStates for waiting until the first of them has come. And what
  /// each worker would, if all merges were dealt to all.
  std::int64_t largest_arrival = 0;
  std::int64_t mean_arrival = 0;
};
inline constexpr std::int64_t kRowInStates = 20;

/// A finished plan: views into the planner's own buffers, or where it was asked to write, valid
/// until its next successful plan().
struct Plan {
  std::span<const std::int32_t> words;  // the blob; see plan_layout.h
  std::span<const GroupSummary> groups;
};

/// What a plan remembers of the specs that it was made for.
std::uint64_t plan_fingerprint(std::span<const AttentionSpec> groups);

/// Refuses a plan that was made for other specs. Every executor asks this before it takes one.
void require_specs(const Plan& plan, std::uint64_t fingerprint);

/// Buffer sizes that any plan within `capacity` needs, computed by the ledger (src/plan/ledger.h),
/// and the workers that a launch of each group has.
struct PlanBounds {
  std::int64_t plan_words = 0;
  std::int64_t state_rows = 0;  // o: [state_rows, head_dim_vo] f32, lse: [state_rows] f32
  std::int64_t counters = 0;
  std::int64_t merges = 0;
  std::array<std::int64_t, device::kMaxGroups> workers{};
};

PlanBounds plan_bounds(std::span<const AttentionSpec> groups, const Capacity& capacity,
                       const Policy& policy, std::span<const PlanTarget> targets);

class Planner {
 public:
  /// One target per group (groups may run different kernels). Allocates all its memory here.
  Planner(std::span<const AttentionSpec> groups, const Capacity& capacity, const Policy& policy,
          std::span<const PlanTarget> targets);
  ~Planner();
  Planner(Planner&&) noexcept;
  Planner& operator=(Planner&&) noexcept;

  /// `batches`: one for all groups, or one per group. Validates them (field, value, expectation),
  /// refuses what exceeds the capacity, and leaves the previous plan untouched if it throws.
  /// `words`: where to write the plan, aligned to 64 bytes; by default into memory of the planner.
  const Plan& plan(std::span<const Batch> batches, std::span<std::int32_t> words = {});

  const Plan& current() const noexcept;
  const PlanBounds& bounds() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Independent check that `plan` covers every visible (query row, key) pair of `batches` exactly
/// once, schedules no invisible tile, merges every partial state exactly once in order, and stays
/// within bounds. Throws Error{kInternal} naming the first violation. Slow on purpose: it derives
/// visibility from the batch, never from the planner's own helpers.
void verify_plan(std::span<const AttentionSpec> groups, std::span<const Batch> batches,
                 const Plan& plan, const PlanBounds& bounds);

}  // namespace plait
