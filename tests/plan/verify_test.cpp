// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The verifier refuses wrong plans: each word of right ones is changed in turn.
#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/owned_batch.h"
#include "plait/error.h"
#include "plan/planner.h"
#include "support/paged_batch.h"

namespace plait::test {
namespace {

using namespace device;  // NOLINT: the records of the layout

constexpr int kPage = 4;

PlanTarget two_classes() {
  PlanTarget target;
  target.num_workers = 7;
  target.num_classes = 2;
  target.classes[0] = {4, 16, {100, 5, 3, 1}};
  target.classes[1] = {16, 16, {120, 9, 4, 1}};
  target.canonical = target.classes[1];
  target.segment_tokens = 64;
  return target;
}

AttentionSpec small_spec() {
  AttentionSpec spec;
  spec.num_qo_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim_qk = spec.head_dim_vo = 32;
  spec.page_size = kPage;
  return spec;
}

/// A right plan, its words, and what each of them is.
class Planned {
 public:
  Planned(const AttentionSpec& spec, OwnedBatch batch, const Policy& policy)
      : spec_(spec),
        batch_(std::move(batch)),
        planner_(specs(), capacity(policy), policy, targets()) {
    const Plan& plan = planner_.plan(batches());
    words_.assign(plan.words.begin(), plan.words.end());
    groups_ = plan.groups;
    names_.resize(words_.size(), "unused");
    name_words();
    name_unused();
  }

  std::size_t size() const { return words_.size(); }
  const std::string& name(std::size_t word) const { return names_[word]; }

  std::int32_t value(std::size_t word) const { return words_[word]; }
  /// The same field of the next record, else `word` itself.
  std::size_t next(std::size_t word) const {
    for (std::size_t other = word + 1; other < size() && other <= word + 16; ++other) {
      if (names_[other] == names_[word]) return other;
    }
    return word;
  }

  /// Whether the verifier accepts the plan with some words changed.
  bool accepts(const std::map<std::size_t, std::int32_t>& changes) {
    std::vector<std::int32_t> changed = words_;
    for (const auto& [word, to] : changes) changed[word] = to;
    Plan plan;
    plan.words = changed;
    plan.groups = groups_;
    try {
      verify_plan(specs(), batches(), plan, planner_.bounds());
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInternal) << error.what();
      return false;
    }
  }

 private:
  std::span<const AttentionSpec> specs() const { return {&spec_, 1}; }
  std::span<const Batch> batches() { return {&batch_.get(), 1}; }
  std::span<const PlanTarget> targets() const { return {&target_, 1}; }
  static Capacity capacity(const Policy& policy) {
    Capacity capacity;
    capacity.max_requests = 16;
    capacity.max_query_rows = 256;
    capacity.max_kv_tokens = 2048;
    capacity.max_views = 2;
    capacity.min_kv_chunk = policy.kv_chunk;
    return capacity;
  }

  template <class T>
  const T& at(std::int64_t offset) const {
    return *reinterpret_cast<const T*>(words_.data() + offset);
  }
  void name_records(const std::string& kind, std::int64_t offset, std::int64_t count,
                    std::initializer_list<const char*> fields) {
    for (std::int64_t r = 0; r < count; ++r) {
      for (const char* field : fields)
        names_[static_cast<std::size_t>(offset++)] = kind + "." + field;
    }
  }
  void name_words() {
    name_records("plan", 0, 1,
                 {"magic", "version", "num_groups", "total_words", "fingerprint", "fingerprint"});
    name_records("plan", 6, 8, {"reserved"});
    const std::int64_t begin = group_header_offset(0);
    const auto& group = at<GroupHeader>(begin);
    name_records("group", begin, 1,
                 {"num_requests", "total_q", "num_classes", "segment_tokens", "block_offset",
                  "num_blocks", "piece_offset", "num_pieces", "run_offset", "num_runs",
                  "merge_offset", "num_merges", "ref_offset", "num_refs", "row_pos_offset",
                  "num_state_rows", "num_counters", "kv_len_offset", "q_indptr_offset"});
    name_records("group", begin + 19, 5, {"reserved"});
    name_records("class", begin + 24, kMaxClasses,
                 {"reserved", "reserved", "reserved", "reserved", "reserved", "reserved",
                  "reserved", "reserved"});
    name_records("class", begin + 24, group.num_classes,
                 {"q_tile", "kv_tile", "num_workers", "worker_offset", "slice_offset", "num_slices",
                  "start_offset", "kv_tokens"});
    name_records("block", group.block_offset, group.num_blocks,
                 {"view", "row_begin", "num_rows", "page_begin", "num_slots", "base_pos", "pos0",
                  "request", "flags", "kv_len", "mask_bit0_lo", "mask_bit0_hi", "mask_row_bits",
                  "mask_pos_base", "rope_k_begin", "segment_base"});
    name_records("kv_len", group.kv_len_offset, group.num_requests, {"value"});
    name_records("q_indptr", group.q_indptr_offset, group.num_requests + 1, {"value"});
    if (group.row_pos_offset >= 0) {
      name_records("row_pos", group.row_pos_offset, group.total_q, {"value"});
    }
    name_records("piece", group.piece_offset, group.num_pieces,
                 {"block", "kv_begin", "kv_end", "full_begin", "full_end"});
    name_records(
        "run", group.run_offset, group.num_runs,
        {"fused_row_begin", "num_fused_rows", "head_begin", "head_count", "piece_begin",
         "num_pieces", "state_begin", "merge_begin", "num_merges", "cost", "reserved", "reserved"});
    name_records("merge", group.merge_offset, group.num_merges,
                 {"fused_row_begin", "num_fused_rows", "head_begin", "head_count", "ref_begin",
                  "num_refs", "counter_begin", "reserved"});
    name_records("ref", group.ref_offset, group.num_refs, {"state_row", "head_stride"});
    for (int c = 0; c < group.num_classes; ++c) {
      const ClassHeader& k = group.classes[c];
      name_records("workers", k.worker_offset, k.num_workers + 1, {"begin"});
      name_records("slice", k.slice_offset, k.num_slices, {"run", "first", "count"});
      name_records("start", k.start_offset, k.num_workers,
                   {"first_slice", "last_slice", "head", "count", "kv_begin", "kv_end",
                    "page_begin", "view", "request", "list_end", "reserved", "reserved"});
    }
  }

  /// Fields of records that have no use for them.
  void name_unused() {
    for (std::size_t word = 0; word < size(); ++word) {
      if (names_[word].ends_with(".reserved") || names_[word] == "run.cost")
        names_[word] = "unused";
    }
    const auto& group = at<GroupHeader>(group_header_offset(0));
    const auto unused = [&](const void* field) {
      names_[static_cast<std::size_t>(static_cast<const std::int32_t*>(field) - words_.data())] =
          "unused";
    };
    for (std::int32_t b = 0; b < group.num_blocks; ++b) {
      const auto& block = at<RowBlock>(group.block_offset + 16 * b);
      const bool positions = (block.flags & kBlockHasPositions) != 0;
      if (block.num_rows == 0) {
        for (const void* field : {&block.base_pos, &block.pos0, &block.request, &block.flags,
                                  &block.kv_len, &block.rope_k_begin, &block.segment_base}) {
          unused(field);
        }
      }
      if (positions) unused(&block.base_pos);
      if (positions) unused(&block.segment_base);
      if ((block.flags & kBlockSpansRequests) != 0) unused(&block.pos0);
      if (!spec_.rope.explicit_k_positions) unused(&block.rope_k_begin);
      if ((block.flags & kBlockCustomMask) != 0) continue;
      for (const void* field : {&block.mask_row_bits, &block.mask_pos_base}) unused(field);
      for (const void* field : {&block.mask_bit0_lo, &block.mask_bit0_hi}) unused(field);
    }
    for (std::int32_t r = 0; r < group.num_runs; ++r) {
      const auto& run = at<Run>(group.run_offset + 12 * r);
      if (run.num_pieces == 0) unused(&run.piece_begin);
      if (run.state_begin < 0) unused(&run.merge_begin);
    }
    for (std::int32_t m = 0; m < group.num_merges; ++m) {
      const auto& merge = at<Merge>(group.merge_offset + 8 * m);
      for (std::int32_t k = 0; k < merge.num_refs && merge.head_count == 1; ++k) {
        unused(&at<StateRef>(group.ref_offset + 2 * (merge.ref_begin + k)).head_stride);
      }
    }
  }

  AttentionSpec spec_;
  OwnedBatch batch_;
  PlanTarget target_ = two_classes();
  Planner planner_;
  std::vector<std::int32_t> words_;
  std::span<const GroupSummary> groups_;
  std::vector<std::string> names_;
};

/// Requests of (rows, keys) behind a prefix of `shared` keys that all of them read.
OwnedBatch cascade(int shared, const std::vector<std::pair<int, int>>& requests) {
  OwnedBatch batch = paged_batch(requests, kPage);
  OwnedView prefix;
  prefix.row_indptr = {0, batch.qo_indptr.back()};
  prefix.add_list(shared, kPage);
  batch.views.insert(batch.views.begin(), prefix);
  return batch;
}

/// One list per KV head: every second page, and the last one.
OwnedBatch selected() {
  OwnedBatch batch;
  batch.qo_indptr = {0, 3, 4};
  batch.views.resize(1);
  OwnedView& view = batch.views[0];
  view.row_indptr = batch.qo_indptr;
  view.per_kv_head = true;
  for (int list = 0; list < 4; ++list) {
    view.add_list(5 * kPage - 1, kPage);
    for (int page : {list % 2, 2, 4, 7, 9}) view.positions.push_back(page * kPage);
  }
  return batch;
}

TEST(Verify, CustomMasksCoverTheLastViewOnly) {
  AttentionSpec spec = small_spec();
  spec.mask = MaskKind::kCustom;
  const PlanTarget target = two_classes();
  Capacity capacity;
  capacity.max_requests = 1;
  capacity.max_query_rows = 2;
  capacity.max_kv_tokens = 64;
  capacity.max_views = 3;
  Planner planner({&spec, 1}, capacity, {}, {&target, 1});
  for (const bool at_run : {true, false}) {
    // The mask's bits begin at position 4, where the second view ends; the first one goes beyond.
    OwnedBatch owned;
    owned.qo_indptr = {0, 2};
    owned.kv_len = {24};
    owned.views.resize(3);
    for (OwnedView& view : owned.views) view.row_indptr = owned.qo_indptr;
    owned.views[0].add_list(8, kPage);
    owned.views[1].add_list(4, kPage);
    owned.views[2].add_list(4, kPage);
    owned.views[0].positions_at_run = at_run;
    if (!at_run) owned.views[0].positions = {0, 16};
    owned.views[1].positions = {0};
    owned.views[2].positions = {4};
    const Batch& batch = owned.get();
    const Plan& plan = planner.plan({&batch, 1});
    EXPECT_NO_THROW(verify_plan({&spec, 1}, {&batch, 1}, plan, planner.bounds())) << at_run;
  }
}

TEST(Verify, PositionsAtRunLieWithinTheShortestRequestThatSeesThem) {
  // Both rows see every key that both requests have, the second one not all that it has alone.
  AttentionSpec spec = small_spec();
  const PlanTarget target = two_classes();
  Capacity capacity;
  capacity.max_requests = 3;
  capacity.max_query_rows = 8;
  capacity.max_kv_tokens = 64;
  Planner planner({&spec, 1}, capacity, {}, {&target, 1});
  OwnedBatch owned;
  owned.qo_indptr = {0, 1, 1, 4};
  owned.kv_len = {10, 3, 40};
  OwnedView& view = owned.views.emplace_back();
  view.row_indptr = {0, 4};
  view.add_list(7, kPage);
  view.positions_at_run = true;
  const Batch& batch = owned.get();
  const Plan& plan = planner.plan({&batch, 1});
  EXPECT_NO_THROW(verify_plan({&spec, 1}, {&batch, 1}, plan, planner.bounds()));
}

TEST(Verify, RefusesMoreWorkersThanAGroupsLaunchHas) {
  const std::vector<AttentionSpec> specs(2, small_spec());
  std::vector<PlanTarget> targets(2, two_classes());
  targets[0].num_workers = 9;
  Capacity capacity;
  capacity.max_requests = 4;
  capacity.max_query_rows = 4;
  capacity.max_kv_tokens = 2048;
  Planner planner(specs, capacity, {}, targets);
  OwnedBatch owned = paged_batch({{1, 300}, {1, 200}, {1, 100}}, kPage);
  const Batch& batch = owned.get();
  const Plan& plan = planner.plan({&batch, 1});
  PlanBounds bounds = planner.bounds();
  EXPECT_EQ(bounds.workers[0], 9);
  EXPECT_EQ(bounds.workers[1], 7);
  EXPECT_NO_THROW(verify_plan(specs, {&batch, 1}, plan, bounds));
  bounds.workers[1] -= 1;
  try {
    verify_plan(specs, {&batch, 1}, plan, bounds);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.field(), "plan of group 1: workers of a class");
    EXPECT_EQ(error.value(), "7");
  }
}

TEST(Verify, RefusesAPlanOfWhichAWordIsChanged) {
  struct Count {
    int accepted = 0;
    int all = 0;
  };
  std::map<std::string, Count> counts;
  const auto change_each = [&](const AttentionSpec& spec, const OwnedBatch& batch,
                               const Policy& policy) {
    Planned planned(spec, batch, policy);
    for (std::size_t word = 0; word < planned.size(); ++word) {
      const auto count = [&](const std::map<std::size_t, std::int32_t>& changes) {
        Count& of = counts[planned.name(word)];
        ++of.all;
        of.accepted += planned.accepts(changes) ? 1 : 0;
      };
      const std::int32_t value = planned.value(word);
      // Flags are single bits. What counts words or rows is near enough to be taken for another.
      for (const std::int32_t bit : {1, 2, 4, 8}) count({{word, value ^ bit}});
      count({{word, value + 1}});
      count({{word, value - 1}});
      const std::size_t next = planned.next(word);
      if (planned.value(next) != value) {
        count({{word, planned.value(next)}});
        count({{next, value}});
        count({{word, planned.value(next)}, {next, value}});
      }
    }
  };
  Policy chunks;
  chunks.kind = PolicyKind::kFixedChunk;
  chunks.kv_chunk = 32;
  Policy invariant;
  invariant.kind = PolicyKind::kBatchInvariant;
  AttentionSpec spec = small_spec();
  const std::vector<std::pair<int, int>> mixed{{1, 300}, {20, 90}, {0, 7}, {1, 0}, {3, 2}};
  const std::vector<std::pair<int, int>> behind{{1, 70}, {5, 90}, {2, 3}};
  for (const Policy& policy : {Policy{}, chunks, invariant}) {
    change_each(spec, paged_batch(mixed, kPage), policy);
    change_each(spec, cascade(150, behind), policy);
  }
  change_each(spec, selected(), {});
  spec.rope.kind = RopeKind::kHalf;
  spec.rope.explicit_k_positions = true;
  change_each(spec, paged_batch(behind, kPage), {});
  spec.mask = MaskKind::kCustom;
  change_each(spec, paged_batch(behind, kPage), {});

  // Some changes leave a right plan: more room, a smaller range without masks, keys that nobody
  // sees, another worker, another tile. Of all others none may pass.
  const std::set<std::string> open{
      "class.num_workers",    "class.q_tile",         "class.worker_offset",  "group.merge_offset",
      "group.num_counters",   "group.num_pieces",     "group.num_state_rows", "group.ref_offset",
      "group.row_pos_offset", "group.segment_tokens", "piece.full_begin",     "piece.full_end",
      "piece.kv_end",         "run.piece_begin",      "slice.first",          "slice.run",
      "workers.begin"};
  for (const auto& [name, count] : counts) {
    if (name == "unused" || name == "class.kv_tile") continue;
    if (open.count(name) != 0) {
      EXPECT_LT(count.accepted, count.all) << name;
    } else {
      EXPECT_EQ(count.accepted, 0) << name;
    }
  }
}

}  // namespace
}  // namespace plait::test
