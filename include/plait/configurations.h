// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plait/attention.h"

namespace plait {

/// Which prepared configuration a batch can use.
struct Selection {
  std::int32_t index = -1;  // the one with the smallest workspace that fits; -1: none does
  Capacity need;            // the smallest capacity that would
  /// For -1: what the roomiest configuration lacks, for example "max_requests: need 9, have 8".
  std::string lacking;
};

/// What growing a configuration left behind.
struct GrowReport {
  /// Captures (ids of cuStreamGetCaptureInfo) whose graphs still exist and hold runs of the
  /// configuration that was replaced. Their memory stays valid as long as they live, but they never
  /// see another plan: capture them again.
  std::vector<std::uint64_t> invalidated_graphs;
};

/// Several `Attention` objects for the same layer groups with different capacities, all prepared
/// ahead: a small one for decode steps and a large one for prefill, say. Each has its own workspace
/// and its own graphs. Not thread safe. `engine` must outlive it.
class ConfigurationSet {
 public:
  /// Throws if a spec is wrong in itself; backends are asked by `add`.
  ConfigurationSet(const Engine& engine, std::vector<AttentionSpec> groups,
                   Attention::Options options);

  /// Prepares one more: compiles or loads kernels, allocates. Returns its index. Throws what
  /// Attention's constructor throws and is unchanged then.
  std::int32_t add(const Capacity& capacity);

  /// Validates the batches (one for all groups, or one per group) and finds the configuration for
  /// them. Changes and allocates nothing on the device; linear in the batch.
  Selection select(std::span<const Batch> batches) const;
  Selection select(const Batch& batch) const { return select(std::span<const Batch>(&batch, 1)); }

  /// Replaces configuration `index` by one of capacity `to`, and says which captured graphs that
  /// invalidates. If it throws, the old one is still in place.
  GrowReport grow(std::int32_t index, const Capacity& to);

  std::int32_t size() const noexcept { return static_cast<std::int32_t>(entries_.size()); }
  /// Throw Error{kInvalidArgument} for an index that is not there.
  Attention& at(std::int32_t index);
  const Capacity& capacity(std::int32_t index) const;
  /// Bytes of device memory of one configuration's workspace.
  std::int64_t workspace_bytes(std::int32_t index) const;

 private:
  struct Entry {
    Capacity capacity;
    std::int64_t bytes = 0;
    std::unique_ptr<Attention> attention;
  };

  Entry make(const Capacity& capacity) const;
  const Entry& entry(std::int32_t index) const;

  const Engine* engine_;
  std::vector<AttentionSpec> groups_;
  Attention::Options options_;
  std::vector<Entry> entries_;
};

}  // namespace plait
