// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A libcuda without a GPU, for tests of the runtime: memory is host memory, copies happen at once,
// launches are recorded, any call can be told to fail, and everything that was made and not
// destroyed is counted.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace plait::cuda::fake {

struct Launch {
  std::string symbol;
  unsigned grid = 0;
  unsigned threads = 0;
  void* stream = nullptr;
  bool captured = false;                  // or added to a graph
  bool overlaps_previous = false;         // a programmatic dependent launch
  std::vector<unsigned char> parameters;  // the first bytes of the kernel's parameter
};

/// A dependency between the nodes of a graph, which are numbered from 1.
struct Edge {
  std::size_t from = 0;
  std::size_t to = 0;
  bool programmatic = false;
  friend bool operator==(const Edge&, const Edge&) = default;
};

struct State {
  // Failure injection: the call with this number (from 1) fails; 0: none does.
  std::int64_t fail_at = 0;
  std::int64_t calls = 0;

  std::vector<Launch> launches;
  std::vector<Edge> edges;               // of graphs that were put together node by node
  std::int64_t event_waits_on_host = 0;  // cuEventSynchronize
  std::int64_t event_queries = 0;
  std::int64_t memsets = 0;
  std::int64_t graph_launches = 0;
  bool copies_pending = false;     // what cuEventQuery says; cuEventSynchronize ends it
  std::vector<int> context_stack;  // devices, innermost last

  // What is alive.
  std::map<std::uintptr_t, std::pair<std::size_t, int>> device_memory;  // address: bytes, device
  std::set<void*> host_memory, events, streams, modules, graphs, user_objects;
  std::size_t graph_execs = 0;
  std::map<int, int> retained;  // device: references to its primary context

  std::size_t alive() const {
    std::size_t count = device_memory.size() + host_memory.size() + events.size() + streams.size() +
                        modules.size() + graphs.size() + user_objects.size() + graph_execs;
    for (const auto& [device, references] : retained) count += static_cast<std::size_t>(references);
    return count;
  }
};

/// Bytes of a launch's parameter that are kept.
inline constexpr std::size_t kKeptParameterBytes = 24;

}  // namespace plait::cuda::fake

/// The state of the loaded library.
extern "C" plait::cuda::fake::State* plait_fake_cuda_state();
