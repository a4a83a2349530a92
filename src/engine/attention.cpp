// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/attention.h"

#include <chrono>
#include <utility>

#include "engine/attention_impl.h"
#include "engine/backends.h"

namespace plait {
namespace detail {
namespace {

std::vector<PlanTarget> make_targets(const Backend& backend, std::span<const AttentionSpec> groups,
                                     const Policy& policy, const EngineOptions& engine) {
  std::vector<PlanTarget> targets;
  for (const AttentionSpec& spec : groups) targets.push_back(backend.target(spec, policy, engine));
  return targets;
}

ExecutorRequest make_request(std::span<const AttentionSpec> groups,
                             std::span<const PlanTarget> targets, const Capacity& capacity,
                             const Attention::Options& options, const EngineOptions& engine) {
  return {groups,    targets,  plan_bounds(groups, capacity, options.policy, targets),
          &capacity, &options, &engine};
}

/// Host copies of the page lists, checked for range and, per query, for duplicates; positions
/// against the plan; rope positions of shared keys against each other.
void check_lists(const AttentionSpec& spec, const PlanFacts& facts, const RunArgs& args,
                 const Executor& executor) {
  std::vector<std::vector<std::int32_t>> positions(static_cast<std::size_t>(facts.num_views));
  for (std::size_t v = 0; v < args.positions.size(); ++v) {
    if (!facts.has_positions[v] || facts.num_pages[v] == 0) continue;
    Tensor listed = args.positions[v];
    listed.shape[0] = facts.num_pages[v];
    positions[v] = executor.read_i32(listed, args.stream);
    check_positions(facts, spec.page_size, static_cast<std::int32_t>(v), positions[v]);
  }
  if (spec.rope.explicit_k_positions) {
    check_shared_rope_positions(facts, spec.page_size, positions,
                                executor.read_i32(args.k_rope_positions, args.stream));
  }
  if (spec.kv_kind == KvKind::kRagged) return;
  std::vector<std::vector<std::int32_t>> copies;
  std::vector<std::span<const std::int32_t>> ids;
  copies.reserve(static_cast<std::size_t>(facts.num_views));
  for (std::size_t v = 0; v < static_cast<std::size_t>(facts.num_views); ++v) {
    Tensor listed = args.page_ids[v];
    listed.shape[0] = facts.num_pages[v];
    copies.push_back(facts.num_pages[v] > 0 ? executor.read_i32(listed, args.stream)
                                            : std::vector<std::int32_t>{});
    check_page_ids(static_cast<std::int32_t>(v), copies.back(), args.k.shape[0]);
    ids.emplace_back(copies.back());
  }
  check_duplicates(facts, ids);
}

}  // namespace

std::vector<AttentionSpec> checked_groups(std::vector<AttentionSpec> groups) {
  if (groups.empty() || groups.size() > static_cast<std::size_t>(device::kMaxGroups)) {
    throw Error(ErrorCode::kInvalidArgument, "groups", std::to_string(groups.size()),
                "1 to " + std::to_string(device::kMaxGroups) + " layer groups");
  }
  for (const AttentionSpec& spec : groups) validate(spec);
  return groups;
}

EngineImpl::EngineImpl(EngineOptions options)
    : options_(std::move(options)),
      backends_(make_backends(options_)),
      operations_(make_operations(options_)) {}

const Backend& EngineImpl::choose(std::span<const AttentionSpec> groups,
                                  const Policy& policy) const {
  std::string reasons;
  for (const auto& backend : backends_) {
    std::string reason = backend->decline_policy(policy);
    for (const AttentionSpec& spec : groups) {
      if (!reason.empty()) break;
      reason = backend->decline(spec, options_);
    }
    if (reason.empty()) return *backend;
    if (!reasons.empty()) reasons += "; ";
    reasons += std::string(backend->family()) + ": " + reason;
  }
  throw Error(ErrorCode::kUnsupported, "spec", "a combination that no backend serves",
              "one that some backend serves (" + reasons + ")");
}

AttentionImpl::AttentionImpl(std::shared_ptr<EngineImpl> engine, std::vector<AttentionSpec> groups,
                             const Capacity& capacity, Attention::Options options)
    : engine_(std::move(engine)),
      groups_(checked_groups(std::move(groups))),
      capacity_(capacity),
      options_(std::move(options)),
      backend_(&engine_->choose(groups_, options_.policy)),
      targets_(make_targets(*backend_, groups_, options_.policy, engine_->options())),
      planner_(groups_, capacity_, options_.policy, targets_),
      executor_(backend_->make_executor(
          make_request(groups_, targets_, capacity_, options_, engine_->options()))),
      facts_(groups_.size()),
      next_facts_(groups_.size()) {
  summaries_.reserve(groups_.size());
}

void AttentionImpl::plan(std::span<const Batch> batches, Stream stream) {
  const Plan& plan = planner_.plan(batches, executor_->plan_words());
  if (options_.checked) verify_plan(groups_, batches, plan, planner_.bounds());
  // What a run is checked against changes together with what it executes: everything that can fail
  // comes before.
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Batch& batch = batches.size() == 1 ? batches[0] : batches[g];
    next_facts_[g] = facts_of(batch, groups_[g], plan, g, options_.checked);
  }
  const auto begin = std::chrono::steady_clock::now();
  executor_->upload(plan, stream);
  upload_ns_ = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  facts_.swap(next_facts_);
  summaries_.clear();
  for (const GroupSummary& group : plan.groups) summaries_.push_back(group.totals);
  planned_ = true;
}

void AttentionImpl::run(const RunArgs& args) {
  if (!planned_) {
    throw Error(ErrorCode::kMismatch, "plan", "none", "a successful plan() before run()");
  }
  if (args.group < 0 || static_cast<std::size_t>(args.group) >= groups_.size()) {
    throw Error(ErrorCode::kInvalidArgument, "group", std::to_string(args.group),
                "a layer group in [0, " + std::to_string(groups_.size()) + ")");
  }
  const auto g = static_cast<std::size_t>(args.group);
  validate_run(groups_[g], facts_[g], args, engine_->options().device);
  if (options_.checked) {
    check_lists(groups_[g], facts_[g], args, *executor_);
  } else if (engine_->options().device.kind == DeviceKind::kCpu &&
             groups_[g].kv_kind == KvKind::kPaged) {
    // Host data: a bad id is refused here; on a GPU the kernel finds it.
    for (std::size_t v = 0; v < args.page_ids.size(); ++v) {
      check_page_ids(static_cast<std::int32_t>(v),
                     {static_cast<const std::int32_t*>(args.page_ids[v].data),
                      static_cast<std::size_t>(facts_[g].num_pages[v])},
                     args.k.shape[0]);
    }
  }
  // A GPU's run may be captured, and must then launch whatever the current plan holds.
  const bool capturable = engine_->options().device.kind == DeviceKind::kCuda;
  if (facts_[g].total_q > 0 || capturable) executor_->run(args);
}

}  // namespace detail

namespace detail {
struct EngineAccess {
  static EngineImpl& impl(const Engine& engine) noexcept { return *engine.impl_; }
};
Operations& operations_of(const Engine& engine) noexcept {
  return EngineAccess::impl(engine).operations();
}
}  // namespace detail

Engine::Engine(EngineOptions options)
    : impl_(std::make_shared<detail::EngineImpl>(std::move(options))) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

const EngineOptions& Engine::options() const noexcept { return impl_->options(); }

std::vector<std::string> Engine::refusals(const AttentionSpec& spec) const {
  validate(spec);
  std::vector<std::string> reasons;
  for (const auto& backend : impl_->backends()) {
    const std::string reason = backend->decline(spec, impl_->options());
    if (reason.empty()) break;
    reasons.push_back(std::string(backend->family()) + ": " + reason);
  }
  return reasons;
}

Attention::Attention(const Engine& engine, std::vector<AttentionSpec> groups,
                     const Capacity& capacity, Options options)
    : impl_(std::make_unique<detail::AttentionImpl>(engine.impl_, std::move(groups), capacity,
                                                    std::move(options))) {}
Attention::~Attention() = default;
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(Attention&&) noexcept = default;

void Attention::plan(std::span<const Batch> batches, Stream stream) {
  impl_->plan(batches, stream);
}
void Attention::run(const RunArgs& args) { impl_->run(args); }
void Attention::status(Stream stream) { impl_->status(stream); }

std::int64_t Attention::workspace_bytes(const Engine& engine, std::span<const AttentionSpec> groups,
                                        const Capacity& capacity, const Options& options) {
  const std::vector<AttentionSpec> specs = detail::checked_groups({groups.begin(), groups.end()});
  const Backend& backend = engine.impl_->choose(specs, options.policy);
  const std::vector<PlanTarget> targets =
      detail::make_targets(backend, specs, options.policy, engine.options());
  return backend.workspace_bytes(
      detail::make_request(specs, targets, capacity, options, engine.options()));
}

std::string Attention::family() const { return std::string(impl_->backend().family()); }

PlanSummary Attention::summary(std::int32_t group) const {
  const std::vector<PlanSummary>& summaries = impl_->summaries();
  if (group < 0 || static_cast<std::size_t>(group) >= summaries.size()) {
    throw Error(ErrorCode::kInvalidArgument, "group", std::to_string(group),
                "a group of the current plan");
  }
  return summaries[static_cast<std::size_t>(group)];
}

}  // namespace plait
