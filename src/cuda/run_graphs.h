// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Runs that come back are launched as graphs: docs/decisions/0033-runs-as-graphs.md.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "cuda/kernel_graph.h"
#include "cuda/kernels/common/params.h"

namespace plait::cuda {

/// Everything that determines what a run launches. Compared byte by byte, padding included: made by
/// copies of whole objects.
struct RunKey {
  device::AttentionParams common;  // without class_index, which each launch has its own of
  std::uint64_t classes;           // bit per tile class
};

/// Graphs of the launches of runs. A step brings the same layers as the step before it, and plans
/// are no parameters of a launch: from the third step on a run launches a graph, one cheap call of
/// the driver for all of its kernels. Runs look up and take note, plans make: `run` allocates
/// nothing. Not thread safe.
class RunGraphs {
 public:
  /// Adds the launches of a key to a graph.
  using Build = std::function<void(const RunKey&, KernelGraph&)>;

  /// How many graphs a plan makes at most, each some 60 us of the host; the others follow with
  /// later plans.
  static constexpr std::size_t kMadePerPlan = 4;
  /// Plans after which a graph that no run launched gives its place to another run's, and after
  /// which graphs are tried again when the driver refused one.
  static constexpr std::int64_t kIdlePlans = 1024;
  /// How many graphs that no run launched yet there are at most: as many as tensors leave behind
  /// that come back once and then move on.
  static constexpr std::size_t kMostUnproven = 32;

  /// Room for `most` graphs; 0: there are none.
  RunGraphs(std::shared_ptr<DeviceContext> context, std::int32_t most);
  ~RunGraphs();
  RunGraphs(const RunGraphs&) = delete;
  RunGraphs& operator=(const RunGraphs&) = delete;

  bool enabled() const noexcept { return most_ > 0; }
  std::int64_t size() const noexcept { return static_cast<std::int64_t>(entries_.size()); }

  /// Destroys all graphs, before what they use ends. Running ones end in their own time.
  void clear() noexcept;

  /// By which runs are looked up and remembered.
  static std::uint64_t hash_of(const RunKey& key) noexcept;
  /// The graph of this run, for a stream that is not being captured; null if there is none.
  CuGraphExec find(const RunKey& key, std::uint64_t hash) noexcept;
  /// Takes note of a run without a graph that was launched: a later plan makes one if it was seen
  /// before. What was refused is no such run, or its graph would be refused in the place of others.
  void note(const RunKey& key, std::uint64_t hash) noexcept;

  /// Makes graphs that runs asked for, once per plan. What the driver refuses, such as for want of
  /// memory, stays launches: this does not throw.
  void make(const Build& build) noexcept;

 private:
  struct Entry {
    std::uint64_t hash = 0;
    CuGraphExec exec = nullptr;
    std::int64_t last_used = 0;  // plan
    bool proven = false;         // launched
    RunKey key{};
  };
  struct Wanted {
    std::uint64_t hash = 0;
    RunKey key{};
  };

  /// Hashes of runs that have no graph, the latest first: some 1000, what many layers bring between
  /// two plans. A set is a line of the host's cache.
  using SeenSet = std::array<std::uint64_t, 8>;
  static constexpr std::size_t kSeenSets = 128;  // power of two

  /// Among all, or among those that are unproven; there must be one.
  Entry* longest_unused(bool unproven) noexcept;
  /// Null if the driver refuses.
  CuGraphExec make_one(const RunKey& key, const Build& build) const noexcept;
  void rebuild_index() noexcept;
  std::size_t slot_of(std::uint64_t hash) const noexcept { return hash & (index_.size() - 1); }

  std::shared_ptr<DeviceContext> context_;
  std::size_t most_;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> index_;  // into entries_, by hash, open addressing; -1: free
  std::vector<SeenSet> seen_;
  std::vector<Wanted> wanted_;
  std::int64_t plans_ = 0;
  std::int64_t retry_at_ = 0;  // no run asks for a graph before this plan
  std::size_t unproven_ = 0;
  std::int64_t unproven_until_ = 0;  // as long as there are kMostUnproven, the same for this plan
};

}  // namespace plait::cuda
