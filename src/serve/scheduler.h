// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Continuous batching with chunked prefill, as serving systems do it: every step takes one token
// of each generating request, fills the rest of its token budget with chunks of prompts, and
// admits waiting requests in order of arrival as long as their prompts fit into the page pool.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "serve/page_pool.h"
#include "serve/prefix_cache.h"
#include "serve/trace.h"
#include "serve/virtual_clock.h"

namespace plait::serve {

inline constexpr std::int32_t kMaxStepRows = 1 << 20;  // and running requests
inline constexpr std::int32_t kMaxPageSize = 1 << 16;

struct SchedulerOptions {
  std::int32_t page_size = 16;  // tokens; divides kTraceBlockTokens if the trace has blocks
  std::int32_t pool_pages = 65536;
  std::int32_t token_budget = 2048;  // query rows of one step
  std::int32_t max_running = 256;
  bool prefix_cache = true;
  AffineTime step_time{5000.0, 25.0};
};

/// One request's share of a step: `rows` tokens at positions context .. context + rows - 1. The
/// keys of these tokens are appended before attention, so kv_len = context + rows.
struct StepEntry {
  std::int32_t request = 0;
  std::int32_t context = 0;
  std::int32_t rows = 0;
  bool yields_token = false;  // the last row's output becomes a generated token
  bool is_decode = false;     // one row of a request that has generated before
  bool first_token = false;   // the token that it yields is the request's first
};

struct Step {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::int32_t num_rows = 0;
  std::int32_t num_waiting = 0;        // arrived and not running
  std::int64_t newest_arrival_ns = 0;  // latest arrival among the requests of the step
  std::vector<StepEntry> entries;
};

struct SchedulerCounts {
  std::int64_t finished = 0;
  std::int64_t preemptions = 0;
  std::int64_t prompt_tokens = 0;  // of admitted requests, recomputation included
  std::int64_t reused_tokens = 0;  // of those, found in the prefix cache
  std::int64_t deferred = 0;       // admissions put off because another request is computing
                                   // the same prefix right now
};

/// Never loses a request: one that is preempted because the pool is full starts again from its
/// cached prefix, with the tokens that it has generated as part of its prompt. The oldest running
/// request is never preempted for a younger one, hence always makes progress.
class Scheduler {
 public:
  /// Throws Error{kInvalidArgument} for options out of range and for a request that alone does
  /// not fit into the pool. `trace` must outlive the scheduler.
  Scheduler(const Trace& trace, const SchedulerOptions& options);

  /// Forms the next step; false when every request has finished. The step's pages are allocated.
  bool next(Step& step);
  /// The step was executed: advances the clock, publishes finished prompt blocks, retires
  /// finished requests (`pages` of these is empty from here on).
  void commit(Step& step);

  /// Page ids of a running request, in logical order.
  std::span<const std::int32_t> pages(std::int32_t request) const;
  /// Cache blocks that hold the first pages of a running request: equal ids are equal pages.
  std::span<const std::int32_t> shared_blocks(std::int32_t request) const;

  const SchedulerOptions& options() const noexcept { return options_; }
  const SchedulerCounts& counts() const noexcept { return counts_; }
  const PrefixCache& cache() const noexcept { return cache_; }
  const PagePool& pool() const noexcept { return pool_; }
  std::int32_t pages_per_block() const noexcept { return pages_per_block_; }
  std::int64_t num_requests() const noexcept { return std::ssize(trace_.requests); }

 private:
  struct State {
    std::int32_t known = 0;     // prompt and generated tokens
    std::int32_t computed = 0;  // tokens whose K and V are in the cache
    std::int32_t generated = 0;
    std::int32_t rows = 0;  // scheduled in the step being formed
    std::vector<std::int32_t> pages;
    std::vector<std::int32_t> blocks;  // shared cache blocks under the first pages
  };

  State& state(std::int32_t request) { return states_[static_cast<std::size_t>(request)]; }
  const TraceRequest& source(std::int32_t request) const {
    return trace_.requests[static_cast<std::size_t>(request)];
  }
  std::int64_t pages_for(std::int64_t tokens) const {
    return (tokens + options_.page_size - 1) / options_.page_size;
  }
  void schedule_running(std::int32_t& budget, bool decodes, bool& preempted);
  std::int32_t grow(std::int32_t request, std::int32_t rows, std::int32_t& budget, bool& preempted);
  bool allocate(State& s, std::int64_t pages);
  void admit(std::int32_t& budget);
  bool waits_for_prefix(std::int32_t request, std::size_t hits) const;
  std::size_t count_hits(std::int32_t request) const;
  void mark_in_flight(std::int32_t request, int change);
  void preempt(std::int32_t request);
  void publish_blocks(std::int32_t request);
  void release(std::int32_t request);

  const Trace& trace_;
  SchedulerOptions options_;
  std::int32_t pages_per_block_;
  PagePool pool_;
  PrefixCache cache_;
  VirtualClock clock_;
  SchedulerCounts counts_;
  std::vector<State> states_;
  std::vector<std::int32_t> running_;  // by admission; preempted from the back
  std::deque<std::int32_t> waiting_;   // by arrival
  std::int32_t next_arrival_ = 0;
  /// Prompt blocks that running requests are about to compute, with the number of requests.
  std::unordered_map<std::uint64_t, std::int32_t> in_flight_;
};

}  // namespace plait::serve
