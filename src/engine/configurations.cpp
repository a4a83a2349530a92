// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/configurations.h"

#include <utility>

#include "engine/attention_impl.h"
#include "plan/fit_capacity.h"

namespace plait {
namespace {

struct Bound {
  const char* name;
  std::int64_t need;
  std::int64_t have;
};

/// The bounds of a capacity that a batch is measured by.
std::vector<Bound> compare(const Capacity& need, const Capacity& have) {
  const auto blocks = [](const Capacity& c) {
    return c.max_row_blocks != 0 ? c.max_row_blocks : c.max_requests * c.max_views;
  };
  return {{"max_requests", need.max_requests, have.max_requests},
          {"max_query_rows", need.max_query_rows, have.max_query_rows},
          {"max_kv_tokens", need.max_kv_tokens, have.max_kv_tokens},
          {"max_row_blocks", blocks(need), blocks(have)},
          {"max_views", need.max_views, have.max_views}};
}

bool fits(const Capacity& need, const Capacity& have) {
  for (const Bound& bound : compare(need, have)) {
    if (bound.need > bound.have) return false;
  }
  return true;
}

std::string shortage(const Capacity& need, const Capacity& have) {
  std::string text;
  for (const Bound& bound : compare(need, have)) {
    if (bound.need <= bound.have) continue;
    if (!text.empty()) text += "; ";
    text += std::string(bound.name) + ": need " + std::to_string(bound.need) + ", have " +
            std::to_string(bound.have);
  }
  return text;
}

}  // namespace

ConfigurationSet::ConfigurationSet(const Engine& engine, std::vector<AttentionSpec> groups,
                                   Attention::Options options)
    : engine_(&engine),
      groups_(detail::checked_groups(std::move(groups))),
      options_(std::move(options)) {}

ConfigurationSet::Entry ConfigurationSet::make(const Capacity& capacity) const {
  Entry entry;
  entry.capacity = capacity;
  entry.bytes = Attention::workspace_bytes(*engine_, groups_, capacity, options_);
  entry.attention = std::make_unique<Attention>(*engine_, groups_, capacity, options_);
  return entry;
}

std::int32_t ConfigurationSet::add(const Capacity& capacity) {
  entries_.push_back(make(capacity));
  return size() - 1;
}

Selection ConfigurationSet::select(std::span<const Batch> batches) const {
  Selection selection;
  selection.need = fit_capacity(groups_, batches, options_.policy);
  const Entry* roomiest = nullptr;
  for (std::int32_t index = 0; index < size(); ++index) {
    const Entry& candidate = entry(index);
    if (roomiest == nullptr || candidate.bytes > roomiest->bytes) roomiest = &candidate;
    if (!fits(selection.need, candidate.capacity)) continue;
    if (selection.index < 0 || candidate.bytes < entry(selection.index).bytes) {
      selection.index = index;
    }
  }
  if (selection.index < 0) {
    selection.lacking = roomiest == nullptr ? "no configuration was added"
                                            : shortage(selection.need, roomiest->capacity);
  }
  return selection;
}

GrowReport ConfigurationSet::grow(std::int32_t index, const Capacity& to) {
  const Entry& old = entry(index);
  if (!fits(old.capacity, to)) {
    throw Error(ErrorCode::kInvalidArgument, "capacity", shortage(old.capacity, to),
                "at least what configuration " + std::to_string(index) + " has");
  }
  Entry grown = make(to);
  GrowReport report;
  report.invalidated_graphs = old.attention->impl().executor().living_captures();
  entries_[static_cast<std::size_t>(index)] = std::move(grown);
  return report;
}

const ConfigurationSet::Entry& ConfigurationSet::entry(std::int32_t index) const {
  if (index < 0 || index >= size()) {
    throw Error(ErrorCode::kInvalidArgument, "configuration", std::to_string(index),
                "an index below " + std::to_string(size()));
  }
  return entries_[static_cast<std::size_t>(index)];
}

Attention& ConfigurationSet::at(std::int32_t index) { return *entry(index).attention; }

const Capacity& ConfigurationSet::capacity(std::int32_t index) const {
  return entry(index).capacity;
}

std::int64_t ConfigurationSet::workspace_bytes(std::int32_t index) const {
  return entry(index).bytes;
}

}  // namespace plait
