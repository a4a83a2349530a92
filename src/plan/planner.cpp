// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plan/planner.h"

#include <cstring>
#include <numeric>
#include <string>

#include "core/batch_resolve.h"
#include "plan/blob.h"
#include "plan/bounds.h"
#include "plan/contention.h"
#include "plan/cutting.h"
#include "plan/merges.h"
#include "plan/planner_memory.h"
#include "plan/slices.h"
#include "plan/starts.h"
#include "plan/task.h"

namespace plait {
namespace {

using namespace planning;  // NOLINT: the planner is the face of this namespace

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

std::vector<GroupFacts> facts_of_groups(std::span<const AttentionSpec> specs,
                                        std::span<const PlanTarget> targets, const Policy& policy,
                                        const Capacity& capacity) {
  std::vector<GroupFacts> groups;
  groups.reserve(specs.size());
  for (std::size_t g = 0; g < specs.size(); ++g) {
    groups.push_back(make_facts(specs[g], targets[g], policy, capacity));
  }
  return groups;
}

void check_limit(const char* field, i64 need, i64 limit) {
  if (need <= limit) return;
  throw Error(ErrorCode::kOverCapacity, field, std::to_string(need),
              "at most the capacity, " + std::to_string(limit));
}

/// What kernels read of the requests: lengths, rows, and positions of rows where a row block does
/// not say them.
void write_requests(const BatchFacts& facts, BlobWriter& blob, device::GroupHeader& header) {
  const std::span<const i32> q_indptr = facts.batch->qo_indptr;
  const std::size_t requests = q_indptr.size() - 1;
  header.num_requests = static_cast<i32>(requests);
  header.total_q = static_cast<i32>(facts.counts.total_q);
  header.kv_len_offset = blob.open<i32>(static_cast<i64>(requests));
  if (requests > 0) std::memcpy(blob.at<i32>(header.kv_len_offset), facts.kv_len, requests * 4);
  header.q_indptr_offset = blob.open<i32>(static_cast<i64>(requests) + 1);
  std::memcpy(blob.at<i32>(header.q_indptr_offset), q_indptr.data(), q_indptr.size_bytes());
  header.row_pos_offset = -1;
  if (!facts.resolved.spans_requests) return;
  header.row_pos_offset = blob.open<i32>(facts.counts.total_q);
  i32* position = blob.at<i32>(header.row_pos_offset);
  for (std::size_t r = 0; r < requests; ++r) {
    const i32 rows = q_indptr[r + 1] - q_indptr[r];
    for (i32 i = 0; i < rows; ++i) *position++ = facts.kv_len[r] - rows + i;
  }
}

void write_sections(const RunSection& runs, const MergeSection& merges, device::GroupHeader& out) {
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
}

GroupSummary summary_of(const GroupFacts& group, const WorkerPlan& workers, const RunSection& runs,
                        const MergeSection& merges, i64 words) {
  GroupSummary summary;
  summary.totals.num_items = runs.num_items;
  summary.totals.num_partial_states = runs.partial_states;
  summary.totals.num_workers = group.num_workers;
  summary.totals.largest_load = workers.largest_load;
  summary.totals.mean_load = (workers.total_load + group.num_workers - 1) / group.num_workers;
  summary.totals.largest_item = workers.largest_item;
  summary.totals.metadata_bytes = words * 4;
  summary.totals.workspace_bytes = summary.totals.metadata_bytes +
                                   runs.state_rows * (i64{group.spec->head_dim_vo} + 1) * 4 +
                                   i64{merges.num_counters} * 4;
  summary.num_classes = group.num_classes;
  summary.classes = workers.classes;
  summary.num_state_rows = runs.state_rows;
  summary.num_merges = merges.num_merges;
  summary.largest_arrival = merges.largest_arrival;
  summary.mean_arrival = merges.total_arrivals / group.num_workers;
  return summary;
}

}  // namespace

struct Planner::Impl {
  std::vector<AttentionSpec> specs;
  std::vector<PlanTarget> targets;
  Capacity capacity;
  PlanBounds bounds;
  std::uint64_t spec_fingerprint;
  std::vector<GroupFacts> groups;
  PlannerMemory memory;
  std::array<std::vector<GroupSummary>, 2> summaries;
  int current = 0;
  Plan plan;

  Impl(std::span<const AttentionSpec> group_specs, const Capacity& cap, const Policy& policy,
       std::span<const PlanTarget> group_targets);
  void plan_group(const GroupFacts& group, const Batch& batch, BlobWriter& blob, std::size_t index,
                  GroupSummary& summary);
  BatchFacts resolve(const GroupFacts& group, const Batch& batch, BlobWriter& blob,
                     device::GroupHeader& header);
};

Planner::Impl::Impl(std::span<const AttentionSpec> group_specs, const Capacity& cap,
                    const Policy& policy, std::span<const PlanTarget> group_targets)
    : specs(group_specs.begin(), group_specs.end()),
      targets(group_targets.begin(), group_targets.end()),
      capacity(cap),
      bounds(plan_bounds(group_specs, cap, policy, group_targets)),
      spec_fingerprint(plan_fingerprint(group_specs)),
      groups(facts_of_groups(specs, targets, policy, capacity)),
      memory(groups, capacity, bounds) {
  for (auto& s : summaries) s.resize(specs.size());
}

BatchFacts Planner::Impl::resolve(const GroupFacts& group, const Batch& batch, BlobWriter& blob,
                                  device::GroupHeader& header) {
  Scratch& scratch = memory.scratch;
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
  return facts;
}

void Planner::Impl::plan_group(const GroupFacts& fixed, const Batch& batch, BlobWriter& blob,
                               std::size_t index, GroupSummary& summary) {
  GroupFacts group = fixed;
  const i64 begin = blob.size();
  device::GroupHeader& out =
      *blob.at<device::GroupHeader>(device::group_header_offset(static_cast<i32>(index)));
  out = device::GroupHeader{};
  BatchFacts facts = resolve(group, batch, blob, out);
  write_requests(facts, blob, out);
  TaskList list;
  list.tasks = memory.scratch.tasks;
  list.view_begin = memory.scratch.view_begin;
  make_tasks(group, facts, list);
  WholeSize whole = measure(facts, list, memory.scratch);
  if (group.policy.balance && lighten_costs(group, whole, list)) {
    whole = measure(facts, list, memory.scratch);
  }
  WorkerPlan workers;
  const RunSection runs = cut_and_assign(group, whole, facts, list, blob, memory.scratch, workers);
  write_slices(group, workers, memory.scratch, blob, out);
  write_starts(runs, memory.scratch, blob, out);
  const MergeSection merges = write_merges(facts, list, runs, blob);
  if (runs.state_rows > bounds.state_rows || merges.num_counters > bounds.counters) {
    throw Error(ErrorCode::kInternal, "partial state rows", std::to_string(runs.state_rows),
                "at most the proven bound, " + std::to_string(bounds.state_rows));
  }
  out.segment_tokens = group.segment_tokens;
  write_sections(runs, merges, out);
  summary = summary_of(group, workers, runs, merges,
                       blob.size() - begin + static_cast<i64>(sizeof(device::GroupHeader) / 4));
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

const Plan& Planner::plan(std::span<const Batch> batches, std::span<std::int32_t> words) {
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
  i32* const target = words.empty() ? p.memory.blobs[slot] : words.data();
  BlobWriter blob(target, words.empty() ? p.bounds.plan_words : static_cast<i64>(words.size()));
  device::PlanHeader& header = *blob.at<device::PlanHeader>(blob.open<device::PlanHeader>(1));
  header = device::PlanHeader{};
  header.magic = device::kPlanMagic;
  header.version = device::kPlanVersion;
  header.num_groups = static_cast<i32>(p.groups.size());
  header.spec_fingerprint = p.spec_fingerprint;
  blob.open<device::GroupHeader>(header.num_groups, device::group_header_offset(0));
  for (std::size_t g = 0; g < p.groups.size(); ++g) {
    p.plan_group(p.groups[g], batches[batches.size() == 1 ? 0 : g], blob, g, p.summaries[slot][g]);
  }
  header.total_words = static_cast<i32>(blob.size());
  p.current = next;
  p.plan.words = {target, static_cast<std::size_t>(blob.size())};
  p.plan.groups = p.summaries[slot];
  return p.plan;
}

const Plan& Planner::current() const noexcept { return impl_->plan; }
const PlanBounds& Planner::bounds() const noexcept { return impl_->bounds; }

}  // namespace plait
