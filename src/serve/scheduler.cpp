// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/scheduler.h"

#include <algorithm>
#include <string>

#include "plait/error.h"

namespace plait::serve {
namespace {

/// How far admission looks past requests that wait for a prefix in flight.
constexpr std::size_t kAdmissionScan = 64;

void check_range(const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    throw Error(ErrorCode::kInvalidArgument, field, std::to_string(value),
                "a number in " + std::to_string(low) + ".." + std::to_string(high));
  }
}

}  // namespace

Scheduler::Scheduler(const Trace& trace, const SchedulerOptions& options)
    : trace_(trace),
      options_(options),
      pages_per_block_(std::max(1, kTraceBlockTokens / std::max(1, options.page_size))),
      pool_((check_range("page_size", options.page_size, 1, kMaxPageSize),
             check_range("pool_pages", options.pool_pages, 1, INT32_MAX), options.pool_pages)),
      cache_(pool_, pages_per_block_),
      clock_(options.step_time),
      states_(trace.requests.size()) {
  check_range("token_budget", options.token_budget, 1, kMaxStepRows);
  check_range("max_running", options.max_running, 1, kMaxStepRows);
  const std::int64_t pool_tokens = std::int64_t{options.pool_pages} * options.page_size;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& request = trace.requests[i];
    const std::int64_t tokens = std::int64_t{request.input_tokens} + request.output_tokens;
    if (pages_for(tokens) > options.pool_pages) {
      throw Error(ErrorCode::kInvalidArgument, "pool_tokens", std::to_string(pool_tokens),
                  "at least " + std::to_string(pages_for(tokens) * options.page_size) +
                      ", the tokens of request " + std::to_string(i + 1) + " of the trace");
    }
    if (options.prefix_cache && !request.block_keys.empty() &&
        kTraceBlockTokens % options.page_size != 0) {
      throw Error(ErrorCode::kInvalidArgument, "page_size", std::to_string(options.page_size),
                  "a divisor of 512: the trace shares prompts in blocks of 512 tokens");
    }
  }
}

std::span<const std::int32_t> Scheduler::pages(std::int32_t request) const {
  return states_[static_cast<std::size_t>(request)].pages;
}

std::span<const std::int32_t> Scheduler::shared_blocks(std::int32_t request) const {
  return states_[static_cast<std::size_t>(request)].blocks;
}

bool Scheduler::next(Step& step) {
  step.entries.clear();
  step.num_rows = 0;
  if (counts_.finished == num_requests()) return false;
  const auto arrived = [&] {
    return next_arrival_ < num_requests() && source(next_arrival_).arrival_ns <= clock_.now_ns();
  };
  if (running_.empty() && waiting_.empty()) clock_.wait_until(source(next_arrival_).arrival_ns);
  while (arrived()) waiting_.push_back(next_arrival_++);

  std::int32_t budget = options_.token_budget;
  bool preempted = false;
  schedule_running(budget, /*decodes=*/true, preempted);
  schedule_running(budget, /*decodes=*/false, preempted);
  // A step that had to preempt has no room for newcomers; it would preempt them next.
  if (!preempted) admit(budget);

  step.start_ns = clock_.now_ns();
  step.newest_arrival_ns = 0;
  step.num_waiting = static_cast<std::int32_t>(waiting_.size());
  for (const std::int32_t request : running_) {
    State& s = state(request);
    if (s.rows == 0) continue;
    StepEntry entry;
    entry.request = request;
    entry.context = s.computed;
    entry.rows = s.rows;
    entry.yields_token = s.computed + s.rows == s.known;
    entry.is_decode = s.rows == 1 && s.generated > 0 && entry.yields_token;
    entry.first_token = entry.yields_token && s.generated == 0;
    step.entries.push_back(entry);
    step.num_rows += s.rows;
    step.newest_arrival_ns = std::max(step.newest_arrival_ns, source(request).arrival_ns);
  }
  if (step.entries.empty()) {
    throw Error(ErrorCode::kInternal, "step", "no entry", "progress in every step");
  }
  return true;
}

void Scheduler::schedule_running(std::int32_t& budget, bool decodes, bool& preempted) {
  // Indices, because preemption shortens running_ from the back.
  for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
    const std::int32_t request = running_[i];
    State& s = state(request);
    if ((s.known - s.computed == 1) != decodes || s.rows > 0) continue;
    const std::int32_t wanted = std::min(budget, s.known - s.computed);
    const std::int32_t rows = grow(request, wanted, budget, preempted);
    s.rows = rows;
    budget -= rows;
  }
}

/// Makes room for up to `rows` more tokens of a running request; returns how many fit (0: none,
/// or the request itself was preempted). Younger requests give way.
std::int32_t Scheduler::grow(std::int32_t request, std::int32_t rows, std::int32_t& budget,
                             bool& preempted) {
  State& s = state(request);
  const auto room = [&] {
    const std::int64_t have = std::ssize(s.pages) + pool_.num_free() + cache_.num_evictable_pages();
    const std::int64_t tokens = have * options_.page_size - s.computed;
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(tokens, 0, rows));
  };
  while (room() == 0 && running_.back() != request) {
    const std::int32_t victim = running_.back();
    budget += state(victim).rows;
    preempt(victim);
    preempted = true;
  }
  const std::int32_t fits = room();
  if (fits == 0) {
    // The youngest itself: older requests hold all pages. It starts again when they are done.
    preempt(request);
    preempted = true;
    return 0;
  }
  allocate(s, pages_for(s.computed + fits));
  return fits;
}

bool Scheduler::allocate(State& s, std::int64_t pages) {
  const std::int64_t missing = pages - std::ssize(s.pages);
  if (missing <= 0) return true;
  return cache_.make_room(missing) && pool_.take(missing, s.pages);
}

std::size_t Scheduler::count_hits(std::int32_t request) const {
  const TraceRequest& r = source(request);
  if (!options_.prefix_cache || r.block_keys.empty()) return 0;
  // At least one prompt token is computed: its output is the first generated token.
  const auto limit = static_cast<std::size_t>((r.input_tokens - 1) / kTraceBlockTokens);
  std::size_t hits = 0;
  while (hits < limit && cache_.find(r.block_keys[hits]) >= 0) ++hits;
  return hits;
}

bool Scheduler::waits_for_prefix(std::int32_t request, std::size_t hits) const {
  const TraceRequest& r = source(request);
  const auto limit = static_cast<std::size_t>((r.input_tokens - 1) / kTraceBlockTokens);
  return options_.prefix_cache && hits < limit && in_flight_.contains(r.block_keys[hits]);
}

void Scheduler::mark_in_flight(std::int32_t request, int change) {
  if (!options_.prefix_cache) return;
  const TraceRequest& r = source(request);
  const auto full = static_cast<std::size_t>(r.input_tokens / kTraceBlockTokens);
  for (std::size_t b = state(request).blocks.size(); b < std::min(full, r.block_keys.size()); ++b) {
    const auto it = in_flight_.try_emplace(r.block_keys[b], 0).first;
    it->second += change;
    if (it->second == 0) in_flight_.erase(it);
  }
}

void Scheduler::admit(std::int32_t& budget) {
  std::size_t scanned = 0;
  while (scanned < std::min(waiting_.size(), kAdmissionScan) && budget > 0 &&
         std::ssize(running_) < options_.max_running) {
    const std::int32_t request = waiting_[scanned];
    const TraceRequest& r = source(request);
    const std::size_t hits = count_hits(request);
    if (!r.block_keys.empty() && waits_for_prefix(request, hits)) {
      ++counts_.deferred;
      ++scanned;
      continue;
    }
    State& s = state(request);
    const std::int32_t known = r.input_tokens + s.generated;
    // Referencing idle blocks takes them from what could be evicted.
    std::int64_t idle_hits = 0;
    for (std::size_t b = 0; b < hits; ++b) {
      if (!cache_.is_referenced(cache_.find(r.block_keys[b]))) ++idle_hits;
    }
    const std::int64_t missing =
        pages_for(known) - static_cast<std::int64_t>(hits) * pages_per_block_;
    const std::int64_t available =
        pool_.num_free() + cache_.num_evictable_pages() - idle_hits * pages_per_block_;
    if (missing > available) break;  // in order: a later, smaller one would starve this one
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(scanned));
    running_.push_back(request);
    for (std::size_t b = 0; b < hits; ++b) {
      const std::int32_t block = cache_.find(r.block_keys[b]);
      cache_.acquire(block);
      s.blocks.push_back(block);
      const auto block_pages = cache_.pages(block);
      s.pages.insert(s.pages.end(), block_pages.begin(), block_pages.end());
    }
    s.known = known;
    s.computed = static_cast<std::int32_t>(hits) * kTraceBlockTokens;
    counts_.prompt_tokens += known;
    counts_.reused_tokens += s.computed;
    mark_in_flight(request, 1);
    s.rows = std::min(budget, s.known - s.computed);
    budget -= s.rows;
    // The whole prompt at once: the check above then holds for the steps that follow.
    allocate(s, pages_for(s.known));
  }
}

void Scheduler::preempt(std::int32_t request) {
  ++counts_.preemptions;
  mark_in_flight(request, -1);
  release(request);
  running_.erase(std::find(running_.begin(), running_.end(), request));
  waiting_.insert(std::lower_bound(waiting_.begin(), waiting_.end(), request), request);
}

void Scheduler::release(std::int32_t request) {
  State& s = state(request);
  const auto shared = s.blocks.size() * static_cast<std::size_t>(pages_per_block_);
  pool_.give(std::span(s.pages).subspan(shared));
  for (std::size_t b = s.blocks.size(); b-- > 0;) cache_.release(s.blocks[b]);
  s.pages.clear();
  s.blocks.clear();
  s.rows = 0;
}

void Scheduler::publish_blocks(std::int32_t request) {
  if (!options_.prefix_cache) return;
  const TraceRequest& r = source(request);
  State& s = state(request);
  const auto full = static_cast<std::size_t>(r.input_tokens / kTraceBlockTokens);
  while (s.blocks.size() < std::min(full, r.block_keys.size()) &&
         static_cast<std::int64_t>(s.blocks.size() + 1) * kTraceBlockTokens <= s.computed) {
    const std::uint64_t key = r.block_keys[s.blocks.size()];
    const auto first = s.blocks.size() * static_cast<std::size_t>(pages_per_block_);
    const auto own = std::span(s.pages).subspan(first, static_cast<std::size_t>(pages_per_block_));
    std::int32_t block = cache_.find(key);
    if (block >= 0) {
      // Another request finished the same tokens first: read its pages, return these.
      cache_.acquire(block);
      pool_.give(own);
      const auto theirs = cache_.pages(block);
      std::copy(theirs.begin(), theirs.end(), own.begin());
    } else {
      block = cache_.insert(key, own);
    }
    s.blocks.push_back(block);
    const auto it = in_flight_.find(key);
    if (it != in_flight_.end() && --it->second == 0) in_flight_.erase(it);
  }
}

void Scheduler::commit(Step& step) {
  clock_.advance_step(step.num_rows);
  step.end_ns = clock_.now_ns();
  bool any_finished = false;
  for (const StepEntry& entry : step.entries) {
    State& s = state(entry.request);
    s.computed += entry.rows;
    s.rows = 0;
    publish_blocks(entry.request);
    if (!entry.yields_token) continue;
    ++s.generated;
    ++s.known;
    if (s.generated == source(entry.request).output_tokens) {
      release(entry.request);
      s.computed = -1;  // finished
      any_finished = true;
      ++counts_.finished;
    }
  }
  if (any_finished) {
    std::erase_if(running_, [&](std::int32_t request) { return state(request).computed < 0; });
  }
}

}  // namespace plait::serve
