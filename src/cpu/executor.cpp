// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/executor.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include "plan/bounds.h"
#include "plan/ledger.h"

namespace plait::cpu {
namespace {

constexpr std::int64_t kAlign = 64;

/// Below this much predicted work, in cost units, the caller is done alone before help pays: from
/// threads that spin, and from threads that the system has to wake first, some 20 us.
constexpr std::int64_t kWorthSharing = std::int64_t{5000} * kCostUnitsPerNs;
constexpr std::int64_t kWorthWaking = std::int64_t{40000} * kCostUnitsPerNs;

bool predicted_to_cost(const GroupView& plan, std::int64_t least) {
  std::int64_t cost = 0;
  for (std::int32_t r = 0; r < plan.header->num_runs && cost < least; ++r) {
    cost += std::int64_t{plan.run(r).cost} * plan.run(r).head_count;
  }
  return cost >= least;
}

/// The workspace's parts; the same entries size and carve it.
struct Workspace {
  Ledger ledger;
  Ledger::Handle plan, state_o, state_lse, counters, scratch;
  std::int64_t scratch_each = 0;
  int pad_qk = 0, pad_vo = 0;

  Workspace(const ExecutorRequest& request, int threads, int lanes) {
    std::int64_t widest = 0;
    for (const AttentionSpec& spec : request.groups) {
      widest = std::max<std::int64_t>(widest, spec.head_dim_vo);
      pad_qk = std::max(pad_qk, round_up(spec.head_dim_qk, lanes));
      pad_vo = std::max(pad_vo, round_up(spec.head_dim_vo, lanes));
    }
    plan = ledger.add("plan", request.bounds.plan_words, 4, kAlign);
    state_o = ledger.add("partial_o",
                         CheckedSize::multiply("partial_o", request.bounds.state_rows, widest),
                         sizeof(float), kAlign);
    state_lse = ledger.add("partial_lse", request.bounds.state_rows, sizeof(float), kAlign);
    counters = ledger.add("counters", request.bounds.counters, sizeof(std::int32_t), kAlign);
    scratch_each = Scratch::bytes(pad_qk, pad_vo);
    scratch = ledger.add("scratch", threads, scratch_each, kAlign);
  }

  /// With room to align whatever the allocator returns.
  std::int64_t total() const { return ledger.total() + kAlign; }
};

}  // namespace

std::int64_t CpuExecutor::workspace_bytes(const ExecutorRequest& request) {
  return Workspace(request, thread_count(request.engine->num_threads), kernels().lanes).total();
}

CpuExecutor::CpuExecutor(const ExecutorRequest& request)
    : kernels_(kernels()),
      pool_(ThreadPool::shared(thread_count(request.engine->num_threads))),
      bounds_(request.bounds),
      spec_fingerprint_(plan_fingerprint(request.groups)),
      allocator_(request.engine->allocator),
      measure_(request.options != nullptr && request.options->measure) {
  for (const AttentionSpec& spec : request.groups) {
    Group group{spec, nullptr, nullptr};
    if (spec.rope.kind != RopeKind::kNone) {
      const std::int64_t positions =
          request.capacity == nullptr ? 0 : request.capacity->max_kv_tokens;
      group.rope = std::make_unique<RopeTable>(spec.rope, spec.head_dim_qk, positions);
    }
    if (!spec.variant.source.empty()) group.variant = UserVariant::load(spec);
    groups_.push_back(std::move(group));
  }
  const Workspace parts(request, pool_->size(), kernels_.lanes);
  if (measure_) {
    std::size_t most = 0;
    for (const PlanTarget& target : request.targets) {
      const std::int32_t workers = planning::worker_count(target, request.options->policy);
      most = std::max(most, static_cast<std::size_t>(workers) *
                                static_cast<std::size_t>(std::max(1, target.num_classes)));
    }
    times_.reserve(most);
  }
  runners_.reserve(static_cast<std::size_t>(pool_->size()));
  // The last thing that can fail: a constructor that throws runs no destructor.
  workspace_ = static_cast<char*>(allocator_.allocate
                                      ? allocator_.allocate(parts.total(), Device{})
                                      : std::malloc(static_cast<std::size_t>(parts.total())));
  if (workspace_ == nullptr) {
    throw Error(ErrorCode::kOutOfMemory, "workspace", "no memory",
                std::to_string(parts.total()) + " bytes from the allocator");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(workspace_);
  char* base = workspace_ + (kAlign - static_cast<std::int64_t>(address % kAlign)) % kAlign;
  plan_ = parts.ledger.carve<std::int32_t>(base, parts.plan);
  state_o_ = parts.ledger.carve<float>(base, parts.state_o);
  state_lse_ = parts.ledger.carve<float>(base, parts.state_lse);
  counters_ = parts.ledger.carve<std::int32_t>(base, parts.counters);
  char* scratch = parts.ledger.carve<char>(base, parts.scratch);
  for (int t = 0; t < pool_->size(); ++t) {
    runners_.emplace_back(
        Scratch::carve(scratch + t * parts.scratch_each, parts.pad_qk, parts.pad_vo));
    runners_.back().measure_merges(measure_);
  }
}

CpuExecutor::~CpuExecutor() {
  if (workspace_ == nullptr) return;
  if (allocator_.allocate) {
    if (allocator_.deallocate) allocator_.deallocate(workspace_, Device{});
  } else {
    std::free(workspace_);
  }
}

void CpuExecutor::upload(const Plan& plan, Stream) {
  require_specs(plan, spec_fingerprint_);
  if (static_cast<std::int64_t>(plan.words.size()) > bounds_.plan_words) {
    throw Error(ErrorCode::kInternal, "plan.words", std::to_string(plan.words.size()),
                "at most the bound, " + std::to_string(bounds_.plan_words));
  }
  std::memcpy(plan_, plan.words.data(), plan.words.size_bytes());
}

void CpuExecutor::work(const Layer& layer, ItemRunner& runner, int class_index,
                       std::int32_t worker) {
  const device::ClassHeader& cls = layer.plan.header->classes[class_index];
  const auto* indptr = layer.plan.at<std::int32_t>(cls.worker_offset);
  const auto* slices = layer.plan.at<device::Slice>(cls.slice_offset);
  for (std::int32_t i = indptr[worker]; i < indptr[worker + 1]; ++i) {
    const device::Slice& slice = slices[i];
    const device::Run& run = layer.plan.run(slice.run);
    runner.attend(layer, run, run.head_begin + slice.first, slice.count);
  }
}

std::vector<WorkerTime> CpuExecutor::worker_times(Stream) const {
  std::vector<WorkerTime> ran;
  std::copy_if(times_.begin(), times_.end(), std::back_inserter(ran),
               [](const WorkerTime& time) { return time.end_ns > 0; });
  return ran;
}

void CpuExecutor::run(const RunArgs& args) {
  const Group& group = groups_[static_cast<std::size_t>(args.group)];
  Layer layer = bind_layer(group.spec, args, plan_, kernels_);
  layer.rope = group.rope.get();
  layer.variant = group.variant.get();
  layer.state_o = state_o_;
  layer.state_lse = state_lse_;
  layer.counters = counters_;
  const device::GroupHeader& header = *layer.plan.header;
  std::memset(counters_, 0, static_cast<std::size_t>(header.num_counters) * sizeof(std::int32_t));

  struct Job {
    CpuExecutor* self;
    const Layer* layer;
    std::int32_t total;
    std::chrono::steady_clock::time_point start;
    std::atomic<std::int32_t> next{0};
  } job{this, &layer, 0, std::chrono::steady_clock::now()};
  for (std::int32_t c = 0; c < header.num_classes; ++c) {
    job.total = std::max(job.total, header.classes[c].num_workers);
  }
  if (measure_) {
    times_.assign(
        static_cast<std::size_t>(job.total) * static_cast<std::size_t>(header.num_classes),
        WorkerTime{});
  }

  // Any thread takes any worker, with its lists of all classes: a plan made for more workers than
  // there are threads runs too. Which thread ran a list changes no bit.
  const auto take_workers = [](void* context, int thread) {
    Job& j = *static_cast<Job*>(context);
    const device::GroupHeader& h = *j.layer->plan.header;
    ItemRunner& runner = j.self->runners_[static_cast<std::size_t>(thread)];
    for (;;) {
      const std::int32_t ticket = j.next.fetch_add(1, std::memory_order_relaxed);
      if (ticket >= j.total) return;
      // The class of larger tiles first: its lists are the longer ones.
      for (std::int32_t c = h.num_classes - 1; c >= 0; --c) {
        if (ticket >= h.classes[c].num_workers) continue;
        const auto begin = std::chrono::steady_clock::now();
        j.self->work(*j.layer, runner, c, ticket);
        if (!j.self->measure_) continue;
        const auto end = std::chrono::steady_clock::now();
        const auto ns = [&](auto t) {
          return std::chrono::duration_cast<std::chrono::nanoseconds>(t - j.start).count();
        };
        j.self->times_[static_cast<std::size_t>(ticket * h.num_classes + c)] = {
            c, ticket, ns(begin), ns(end), runner.take_merge_ns()};
      }
    }
  };
  if (predicted_to_cost(layer.plan, pool_->awake() ? kWorthSharing : kWorthWaking)) {
    pool_->share(take_workers, &job);
  } else {
    take_workers(&job, 0);
  }
  // Rows to which no item contributes have no last arriver.
  for (std::int32_t i = 0; i < header.num_merges; ++i) {
    const device::Merge& merge = layer.plan.merge(i);
    if (merge.num_refs > 0) continue;
    for (std::int32_t head = 0; head < merge.head_count; ++head) {
      runners_[0].merge(layer, merge, merge.head_begin + head);
    }
  }
}

}  // namespace plait::cpu
