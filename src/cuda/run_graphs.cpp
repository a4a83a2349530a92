// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/run_graphs.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "cuda/setup_scope.h"

namespace plait::cuda {

static_assert(std::is_trivially_copyable_v<RunKey> &&
              sizeof(RunKey) == sizeof(device::AttentionParams) + sizeof(std::uint64_t));

RunGraphs::RunGraphs(std::shared_ptr<DeviceContext> context, std::int32_t most)
    : context_(std::move(context)), most_(static_cast<std::size_t>(most)) {
  if (most_ == 0) return;
  entries_.reserve(most_);
  index_.assign(std::bit_ceil(2 * most_), -1);
  seen_.resize(kSeenSets);
  wanted_.reserve(kMadePerPlan);
}

RunGraphs::~RunGraphs() { clear(); }

void RunGraphs::clear() noexcept {
  if (entries_.empty()) return;
  const TeardownScope scope(*context_);
  if (!scope) return;
  for (const Entry& entry : entries_) context_->driver().graph_exec_destroy(entry.exec);
  entries_.clear();
  unproven_ = 0;
  rebuild_index();
}

std::uint64_t RunGraphs::hash_of(const RunKey& key) noexcept {
  return XXH3_64bits(&key, sizeof(key));
}

CuGraphExec RunGraphs::find(const RunKey& key, std::uint64_t hash) noexcept {
  for (std::size_t slot = slot_of(hash); index_[slot] >= 0; slot = slot_of(slot + 1)) {
    Entry& entry = entries_[static_cast<std::size_t>(index_[slot])];
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): padding is copied with its object
    if (entry.hash != hash || std::memcmp(&entry.key, &key, sizeof(key)) != 0) continue;
    entry.last_used = plans_;
    if (!entry.proven) --unproven_;
    entry.proven = true;
    return entry.exec;
  }
  return nullptr;
}

void RunGraphs::note(const RunKey& key, std::uint64_t hash) noexcept {
  // The low bits are the index's.
  SeenSet& seen = seen_[hash >> 32 & (kSeenSets - 1)];
  const auto found = std::find(seen.begin(), seen.end(), hash);
  if (found == seen.end()) {
    std::rotate(seen.begin(), seen.end() - 1, seen.end());
    seen.front() = hash;
    return;
  }
  if (wanted_.size() == kMadePerPlan || plans_ < retry_at_) return;
  if (unproven_ >= kMostUnproven && plans_ < unproven_until_) return;
  if (std::any_of(wanted_.begin(), wanted_.end(), [&](const Wanted& w) { return w.hash == hash; }))
    return;
  Wanted& wanted = wanted_.emplace_back();
  wanted.hash = hash;
  std::memcpy(&wanted.key, &key, sizeof(key));
}

void RunGraphs::make(const Build& build) noexcept {
  ++plans_;
  if (wanted_.empty()) return;
  const TeardownScope scope(*context_);
  if (!scope) return;
  for (const Wanted& wanted : wanted_) {
    Entry* replaced = nullptr;
    const bool unproven = unproven_ >= kMostUnproven;
    if (unproven || entries_.size() == most_) {
      replaced = longest_unused(unproven);
      // Until one may be replaced, plans need not look for it again.
      std::int64_t& until = unproven ? unproven_until_ : retry_at_;
      until = replaced->last_used + kIdlePlans;
      if (plans_ <= until) break;
    }
    CuGraphExec exec = make_one(wanted.key, build);
    if (exec == nullptr) {
      retry_at_ = plans_ + kIdlePlans;
      break;
    }
    if (replaced != nullptr) {
      context_->driver().graph_exec_destroy(replaced->exec);
      if (!replaced->proven) --unproven_;
    }
    Entry& entry = replaced != nullptr ? *replaced : entries_.emplace_back();
    entry.hash = wanted.hash;
    entry.exec = exec;
    entry.last_used = plans_;
    entry.proven = false;
    ++unproven_;
    std::memcpy(&entry.key, &wanted.key, sizeof(wanted.key));
  }
  wanted_.clear();
  rebuild_index();
}

RunGraphs::Entry* RunGraphs::longest_unused(bool unproven) noexcept {
  Entry* longest = nullptr;
  for (Entry& entry : entries_) {
    if (unproven && entry.proven) continue;
    if (longest == nullptr || entry.last_used < longest->last_used) longest = &entry;
  }
  return longest;
}

CuGraphExec RunGraphs::make_one(const RunKey& key, const Build& build) const noexcept {
  try {
    KernelGraph graph(context_->driver());
    build(key, graph);
    return graph.instantiate();
  } catch (...) {
    return nullptr;  // a launch does as well
  }
}

void RunGraphs::rebuild_index() noexcept {
  std::fill(index_.begin(), index_.end(), -1);
  for (std::size_t at = 0; at < entries_.size(); ++at) {
    std::size_t slot = slot_of(entries_[at].hash);
    while (index_[slot] >= 0) slot = slot_of(slot + 1);
    index_[slot] = static_cast<std::int32_t>(at);
  }
}

}  // namespace plait::cuda
