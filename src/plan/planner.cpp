// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/planner.h"

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>

#include "core/batch_resolve.h"
#include "plan/blob.h"
#include "plan/bounds.h"
#include "plan/chunking.h"
#include "plan/contention.h"
#include "plan/ledger.h"
#include "plan/level.h"
#include "plan/task.h"
#include "plan/workers.h"

namespace plait {
namespace {

using namespace planning;  // NOLINT: the planner is the face of this namespace

struct FreeMemory {
  void operator()(void* memory) const noexcept { std::free(memory); }
};

GroupFacts make_facts(const AttentionSpec& spec, const PlanTarget& target, const Policy& policy,
                      const Capacity& capacity) {
  GroupFacts facts;
  facts.spec = &spec;
  facts.target = &target;
  facts.policy = policy;
  facts.allow_split = capacity.allow_split;
  facts.bounds = group_bounds(spec, capacity, policy, target);
  facts.num_workers = worker_count(target, policy);
  facts.group_size = spec.group_size();
  if (policy.kind == PolicyKind::kBatchInvariant) {
    facts.num_classes = 1;
    facts.classes[0] = target.canonical;
    facts.segment_tokens = target.segment_tokens;
  } else {
    facts.num_classes = target.num_classes;
    facts.classes = target.classes;
  }
  for (std::size_t c = 0; c < static_cast<std::size_t>(facts.num_classes); ++c) {
    facts.granule[c] = std::gcd(spec.page_size, facts.classes[c].kv_tile);
  }
  return facts;
}

/// The bound of list scheduling, for each set of workers.
bool keeps_bound(const GroupFacts& group, const WorkerPlan& plan) {
  const auto holds = [](i64 makespan, i64 total, i64 item, i64 workers) {
    return makespan - item <= (total - item) / workers;
  };
  if (group.num_classes > 1 && group.target->shared_workers) {
    return holds(plan.largest_load, plan.total_load, plan.largest_item, group.num_workers);
  }
  for (const ClassSummary& c : plan.classes) {
    if (c.num_items > 0 && !holds(c.largest_load, c.total_load, c.largest_item, c.num_workers)) {
      return false;
    }
  }
  return true;
}

void check_limit(const char* field, i64 need, i64 limit) {
  if (need <= limit) return;
  throw Error(ErrorCode::kOverCapacity, field, std::to_string(need),
              "at most the capacity, " + std::to_string(limit));
}

}  // namespace

struct Planner::Impl {
  std::vector<AttentionSpec> specs;
  std::vector<PlanTarget> targets;
  Capacity capacity;
  PlanBounds bounds;
  std::uint64_t spec_fingerprint;
  std::vector<GroupFacts> groups;
  std::unique_ptr<void, FreeMemory> memory;
  Scratch scratch;
  std::array<i32*, 2> blobs{};
  std::array<std::vector<GroupSummary>, 2> summaries;
  int current = 0;
  Plan plan;

  Impl(std::span<const AttentionSpec> group_specs, const Capacity& cap, const Policy& policy,
       std::span<const PlanTarget> group_targets);
  void allocate();
  void plan_group(const GroupFacts& group, const Batch& batch, BlobWriter& blob,
                  device::PlanHeader& header, std::size_t index, GroupSummary& summary);
  BatchFacts resolve(const GroupFacts& group, const Batch& batch, BlobWriter& blob,
                     device::GroupHeader& header);
  void make_tasks(const GroupFacts& group, const BatchFacts& batch, TaskList& list);
  /// May split the head domains of `batch` further.
  RunSection cut_and_assign(const GroupFacts& group, BatchFacts& batch, TaskList& list,
                            BlobWriter& blob, WorkerPlan& workers);
  bool cut_to_level(const GroupFacts& group, BatchFacts& batch, TaskList& list, i64 best_load,
                    WorkerPlan& levelled);
};

Planner::Impl::Impl(std::span<const AttentionSpec> group_specs, const Capacity& cap,
                    const Policy& policy, std::span<const PlanTarget> group_targets)
    : specs(group_specs.begin(), group_specs.end()),
      targets(group_targets.begin(), group_targets.end()),
      capacity(cap),
      bounds(plan_bounds(group_specs, cap, policy, group_targets)),
      spec_fingerprint(plan_fingerprint(group_specs)) {
  groups.reserve(specs.size());
  for (std::size_t g = 0; g < specs.size(); ++g) {
    groups.push_back(make_facts(specs[g], targets[g], policy, capacity));
  }
  for (auto& s : summaries) s.resize(specs.size());
  allocate();
}

void Planner::Impl::allocate() {
  GroupBounds most;
  i64 heads = 1;
  for (const GroupFacts& g : groups) {
    most.tiles = std::max(most.tiles, g.bounds.tiles);
    most.requests = std::max(most.requests, g.bounds.requests);
    most.blocks = std::max(most.blocks, g.bounds.blocks);
    most.runs = std::max(most.runs, g.bounds.runs);
    most.items = std::max(most.items, g.bounds.items);
    most.workers = std::max(most.workers, g.bounds.workers);
    heads = std::max<i64>(heads, g.spec->num_kv_heads);
  }
  Ledger ledger;
  const auto blob0 = ledger.add("plan words", bounds.plan_words, 4, 64);
  const auto blob1 = ledger.add("plan words (next)", bounds.plan_words, 4, 64);
  const auto tasks = ledger.add("tasks", most.tiles, sizeof(Task), 64);
  const auto views = ledger.add("tasks per view", heads * (capacity.max_views + 1), 4, 64);
  const auto kv_len = ledger.add("kv_len", most.requests, 4, 64);
  const auto parents = ledger.add("parents", most.blocks, 4, 64);
  const auto cost = ledger.add("run costs", most.runs, 8, 64);
  const auto class_runs = ledger.add("class runs", most.runs, 4, 64);
  const auto order = ledger.add("order", most.runs + most.workers, 4, 64);
  const auto buckets = ledger.add("sort buckets", kSortBuckets, 4, 64);
  const auto team = ledger.add("run teams", most.runs + most.workers, 4, 64);
  const auto cuts = ledger.add("cuts", most.runs + most.workers, 4, 64);
  const auto run_class = ledger.add("run classes", most.runs, 1, 64);
  const auto loads = ledger.add("loads", most.workers, 8, 64);
  const auto heap = ledger.add("heap", most.workers, 4, 64);
  const auto assigned = ledger.add("assignment", most.items, sizeof(Assigned), 64);
  // Untouched pages of a large bound are never committed by the system.
  memory.reset(std::aligned_alloc(64, static_cast<std::size_t>((ledger.total() + 63) / 64 * 64)));
  if (memory == nullptr) {
    throw Error(ErrorCode::kOutOfMemory, "planner memory",
                std::to_string(ledger.total()) + " bytes", "an allocation of that size");
  }
  void* base = memory.get();
  blobs = {ledger.carve<i32>(base, blob0), ledger.carve<i32>(base, blob1)};
  scratch.tasks = ledger.carve<Task>(base, tasks);
  scratch.view_begin = ledger.carve<i32>(base, views);
  scratch.kv_len = ledger.carve<i32>(base, kv_len);
  scratch.parents = ledger.carve<i32>(base, parents);
  scratch.run_cost = ledger.carve<i64>(base, cost);
  scratch.class_runs = ledger.carve<i32>(base, class_runs);
  scratch.order = ledger.carve<i32>(base, order);
  scratch.buckets = ledger.carve<i32>(base, buckets);
  scratch.run_team = ledger.carve<i32>(base, team);
  scratch.cuts = ledger.carve<i32>(base, cuts);
  scratch.run_class = ledger.carve<std::uint8_t>(base, run_class);
  scratch.loads = ledger.carve<i64>(base, loads);
  scratch.heap = ledger.carve<i32>(base, heap);
  scratch.assigned = ledger.carve<Assigned>(base, assigned);
}

BatchFacts Planner::Impl::resolve(const GroupFacts& group, const Batch& batch, BlobWriter& blob,
                                  device::GroupHeader& header) {
  BatchFacts facts;
  facts.batch = &batch;
  facts.counts = count_batch(*group.spec, batch);
  check_limit("requests", facts.counts.num_requests, capacity.max_requests);
  check_limit("query rows", facts.counts.total_q, capacity.max_query_rows);
  check_limit("views", static_cast<i64>(batch.views.size()), capacity.max_views);
  check_limit("row blocks", facts.counts.blocks_used, group.bounds.blocks);
  if (group.canonical() && batch.views.size() > 1 && facts.counts.has_positions) {
    throw Error(ErrorCode::kUnsupported, "plan.policy", "batch_invariant",
                "a single view when pages have positions");
  }
  header.num_blocks = static_cast<i32>(facts.counts.num_lists);
  header.block_offset = blob.open<RowBlock>(facts.counts.num_lists, 16);
  RowBlock* const blocks = blob.at<RowBlock>(header.block_offset);
  const bool chains = group.canonical() && batch.views.size() > 1;
  facts.resolved = resolve_batch(*group.spec, batch, facts.counts, blocks, scratch.kv_len,
                                 chains ? scratch.parents : nullptr);
  check_limit("kv_len", facts.resolved.longest_kv, capacity.max_kv_tokens);
  facts.blocks = blocks;
  facts.kv_len = scratch.kv_len;
  facts.parents = scratch.parents;
  if (!chains && group.canonical()) {
    for (i64 b = 0; b < facts.counts.num_lists; ++b) scratch.parents[b] = -1;
  }
  if (facts.counts.per_kv_head) facts.num_domains = group.spec->num_kv_heads;
  facts.domain_heads = group.spec->num_kv_heads / facts.num_domains;

  header.num_requests = static_cast<i32>(facts.counts.num_requests);
  header.total_q = static_cast<i32>(facts.counts.total_q);
  const std::size_t requests = batch.qo_indptr.size() - 1;
  header.kv_len_offset = blob.open<i32>(static_cast<i64>(requests));
  if (requests > 0) std::memcpy(blob.at<i32>(header.kv_len_offset), scratch.kv_len, requests * 4);
  header.q_indptr_offset = blob.open<i32>(static_cast<i64>(requests) + 1);
  std::memcpy(blob.at<i32>(header.q_indptr_offset), batch.qo_indptr.data(), (requests + 1) * 4);
  header.row_pos_offset = -1;
  if (facts.resolved.spans_requests) {
    header.row_pos_offset = blob.open<i32>(facts.counts.total_q);
    i32* position = blob.at<i32>(header.row_pos_offset);
    for (std::size_t r = 0; r < requests; ++r) {
      const i32 rows = batch.qo_indptr[r + 1] - batch.qo_indptr[r];
      for (i32 i = 0; i < rows; ++i) *position++ = scratch.kv_len[r] - rows + i;
    }
  }
  return facts;
}

void Planner::Impl::make_tasks(const GroupFacts& group, const BatchFacts& batch, TaskList& list) {
  if (!group.canonical()) {
    build_tasks(group, batch, list);
    mark_shared_rows(group, batch, list);
    return;
  }
  build_canonical_tasks(group, batch, false, list);
  mark_shared_rows(group, batch, list);
  const CutSize forced = cut_unsplit(group, batch, list);
  const bool fits = forced.runs <= group.bounds.runs &&
                    forced.runs * batch.domain_heads <= group.bounds.items &&
                    forced.state_rows <= group.bounds.state_rows;
  if (!fits || (forced.state_rows > 0 && !group.allow_split && group.policy.allow_write_through)) {
    // Sharing would need more partial states than the workspace holds: the same segments, flat.
    build_canonical_tasks(group, batch, true, list);
    mark_shared_rows(group, batch, list);
  }
}

/// Tries level cutting. If it does not pay, tasks and domains are left as they are.
bool Planner::Impl::cut_to_level(const GroupFacts& group, BatchFacts& batch, TaskList& list,
                                 i64 best_load, WorkerPlan& levelled) {
  LevelPlan level;
  if (!find_level(group, batch, list, level) ||
      level.workers.largest_load >= best_load - best_load / 256 ||
      !keeps_bound(group, level.workers)) {
    return false;
  }
  const CutSize whole = measure(batch, list).size;
  if ((level.size.runs - whole.runs * level.copies) * level.team > group.bounds.split_items ||
      level.size.state_rows - whole.state_rows > group.bounds.split_rows) {
    return false;
  }
  split_heads(level.team, batch, list);
  cut_at_level(group, level, list, scratch);
  levelled = level.workers;
  return true;
}

RunSection Planner::Impl::cut_and_assign(const GroupFacts& group, BatchFacts& batch, TaskList& list,
                                         BlobWriter& blob, WorkerPlan& workers) {
  const BlobWriter start = blob;
  const auto finish = [&] {
    blob = start;
    const RunSection section = write_runs(group, batch, list, blob, scratch);
    workers = assign_group(group, section.num_runs, batch.domain_heads, scratch);
    return section;
  };
  const PolicyKind kind = group.policy.kind;
  if (kind == PolicyKind::kFixedChunk) {
    cut_fixed(group, batch, list);
    return finish();
  }
  if (kind == PolicyKind::kUnsplit || !group.allow_split) {
    cut_unsplit(group, batch, list);
    return finish();
  }
  const WholeSize whole = measure(batch, list);
  const i64 mean = std::max<i64>(1, (whole.total + group.num_workers - 1) / group.num_workers);
  const auto within = [&](const CutSize& size) {
    const i64 extra = (size.runs - whole.size.runs) * batch.domain_heads;
    if (group.canonical()) {
      return size.runs <= group.bounds.runs &&
             size.runs * batch.domain_heads <= group.bounds.items &&
             size.state_rows <= group.bounds.state_rows;
    }
    return extra <= group.bounds.split_items &&
           size.state_rows - whole.size.state_rows <= group.bounds.split_rows;
  };
  if (group.canonical()) {
    for (i64 limit = mean / 2; limit < kMaxCost; limit *= 2) {
      if (within(cut_to_limit(group, batch, list, limit))) return finish();
      limit = std::max<i64>(limit, 1);
    }
    cut_unsplit(group, batch, list);
    return finish();
  }

  // Whole items first (none above one mean load), longest first; if they do not level, cut where
  // workers are full; if there are too few workers for that, cut smaller and smaller.
  const i64 good = mean + mean / 32;
  i64 best_limit = mean;
  if (whole.largest > mean) cut_to_limit(group, batch, list, mean);
  RunSection section = finish();
  if (workers.largest_load <= good || !group.policy.balance) return section;
  i64 best_load = workers.largest_load;

  WorkerPlan levelled;
  if (cut_to_level(group, batch, list, best_load, levelled)) {
    blob = start;
    section = write_runs(group, batch, list, blob, scratch);
    assign_teams(batch, section.num_runs, scratch, levelled);
    workers = levelled;
    return section;
  }
  i64 assigned_limit = mean;
  i64 cut_limit = mean;
  for (i64 divisor : {2, 4, 8}) {
    if (whole.largest <= mean / divisor) continue;  // would cut nothing
    cut_limit = std::max<i64>(1, mean / divisor);
    if (!within(cut_to_limit(group, batch, list, cut_limit))) break;
    section = finish();
    assigned_limit = cut_limit;
    if (workers.largest_load < best_load - best_load / 128) {
      best_load = workers.largest_load;
      best_limit = cut_limit;
    }
    if (workers.largest_load <= good) break;
  }
  if (cut_limit != best_limit) cut_to_limit(group, batch, list, best_limit);
  return assigned_limit == best_limit ? section : finish();
}

void Planner::Impl::plan_group(const GroupFacts& fixed, const Batch& batch, BlobWriter& blob,
                               device::PlanHeader& header, std::size_t index,
                               GroupSummary& summary) {
  GroupFacts group = fixed;
  const i64 begin = blob.size();
  header.group_offset[index] = blob.open<device::GroupHeader>(1, 16);
  device::GroupHeader& out = *blob.at<device::GroupHeader>(header.group_offset[index]);
  out = device::GroupHeader{};
  BatchFacts facts = resolve(group, batch, blob, out);
  TaskList list;
  list.tasks = scratch.tasks;
  list.view_begin = scratch.view_begin;
  make_tasks(group, facts, list);
  if (group.policy.balance) lighten_costs(group, list);
  WorkerPlan workers;
  const RunSection runs = cut_and_assign(group, facts, list, blob, workers);
  write_slices(group, workers, scratch, blob, out);
  const MergeSection merges = write_merges(facts, list, runs, blob);
  if (runs.state_rows > bounds.state_rows || merges.num_counters > bounds.counters) {
    throw Error(ErrorCode::kInternal, "partial state rows", std::to_string(runs.state_rows),
                "at most the proven bound, " + std::to_string(bounds.state_rows));
  }
  out.segment_tokens = group.segment_tokens;
  out.run_offset = runs.run_offset;
  out.num_runs = runs.num_runs;
  out.piece_offset = runs.piece_offset;
  out.num_pieces = runs.num_pieces;
  out.merge_offset = merges.merge_offset;
  out.num_merges = merges.num_merges;
  out.ref_offset = merges.ref_offset;
  out.num_refs = merges.num_refs;
  out.num_state_rows = static_cast<i32>(runs.state_rows);
  out.num_counters = merges.num_counters;

  summary = GroupSummary{};
  summary.totals.num_items = runs.num_items;
  summary.totals.num_partial_states = runs.partial_states;
  summary.totals.num_workers = group.num_workers;
  summary.totals.largest_load = workers.largest_load;
  summary.totals.mean_load = (workers.total_load + group.num_workers - 1) / group.num_workers;
  summary.totals.largest_item = workers.largest_item;
  summary.totals.metadata_bytes = (blob.size() - begin) * 4;
  summary.totals.workspace_bytes = summary.totals.metadata_bytes +
                                   runs.state_rows * (i64{group.spec->head_dim_vo} + 1) * 4 +
                                   i64{merges.num_counters} * 4;
  summary.num_classes = group.num_classes;
  summary.classes = workers.classes;
  summary.num_state_rows = runs.state_rows;
  summary.num_merges = merges.num_merges;
  summary.largest_arrival = merges.largest_arrival;
  summary.mean_arrival = merges.total_arrivals / group.num_workers;
}

std::uint64_t plan_fingerprint(std::span<const AttentionSpec> groups) {
  std::uint64_t result = 0;
  for (const AttentionSpec& spec : groups) {
    result = (result ^ fingerprint(spec)) * 0x9E3779B97F4A7C15ULL;
  }
  return result;
}

void require_specs(const Plan& plan, std::uint64_t fingerprint) {
  const auto* header = reinterpret_cast<const device::PlanHeader*>(plan.words.data());
  if (header->spec_fingerprint != fingerprint) {
    throw Error(ErrorCode::kMismatch, "plan", "one made for other specs",
                "one made for the specs of this object");
  }
}

Planner::Planner(std::span<const AttentionSpec> groups, const Capacity& capacity,
                 const Policy& policy, std::span<const PlanTarget> targets)
    : impl_(std::make_unique<Impl>(groups, capacity, policy, targets)) {}
Planner::~Planner() = default;
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;

const Plan& Planner::plan(std::span<const Batch> batches) {
  Impl& p = *impl_;
  if (batches.size() != 1 && batches.size() != p.groups.size()) {
    throw Error(ErrorCode::kInvalidArgument, "batches (length)", std::to_string(batches.size()),
                p.groups.size() == 1 ? std::string("1")
                                     : "1 or one per group, " + std::to_string(p.groups.size()));
  }
  // Everything goes into the buffers that the current plan does not use, so that a refusal leaves
  // it untouched.
  const int next = 1 - p.current;
  const std::size_t slot = static_cast<std::size_t>(next);
  BlobWriter blob(p.blobs[slot], p.bounds.plan_words);
  device::PlanHeader& header = *blob.at<device::PlanHeader>(blob.open<device::PlanHeader>(1));
  header = device::PlanHeader{};
  header.magic = device::kPlanMagic;
  header.version = device::kPlanVersion;
  header.num_groups = static_cast<i32>(p.groups.size());
  header.spec_fingerprint = p.spec_fingerprint;
  for (std::size_t g = 0; g < p.groups.size(); ++g) {
    p.plan_group(p.groups[g], batches[batches.size() == 1 ? 0 : g], blob, header, g,
                 p.summaries[slot][g]);
  }
  header.total_words = static_cast<i32>(blob.size());
  p.current = next;
  p.plan.words = {p.blobs[slot], static_cast<std::size_t>(blob.size())};
  p.plan.groups = p.summaries[slot];
  return p.plan;
}

const Plan& Planner::current() const noexcept { return impl_->plan; }
const PlanBounds& Planner::bounds() const noexcept { return impl_->bounds; }

}  // namespace plait
