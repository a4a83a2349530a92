// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "emulator/launch.h"

namespace plait_emulator {

using plait::emulator::Block;
using plait::emulator::current;
using plait::emulator::launch;
using plait::emulator::NamedBarrier;
using plait::emulator::PhaseBarrier;
using plait::emulator::Thread;

namespace {

const char* barrier_name(u32 id) {
  static constexpr const char* kNames[16] = {
      "__syncthreads", "barrier 1",  "barrier 2",  "barrier 3", "barrier 4",  "barrier 5",
      "barrier 6",     "barrier 7",  "barrier 8",  "barrier 9", "barrier 10", "barrier 11",
      "barrier 12",    "barrier 13", "barrier 14", "barrier 15"};
  return kNames[id];
}

void arrive(u32 id, u32 threads, bool waits) {
  if (id >= 16) launch->fail("uses barrier " + std::to_string(id) + "; there are 16");
  NamedBarrier& barrier = current->warp->block->barriers[id];
  if (barrier.arrived == 0) barrier.threads = threads;
  if (barrier.threads != threads || threads % 32 != 0) {
    launch->fail(std::string("comes to ") + barrier_name(id) + " for " + std::to_string(threads) +
                 " threads, where others wait for " + std::to_string(barrier.threads));
  }
  if (std::find(barrier.waiting.begin(), barrier.waiting.end(), current) != barrier.waiting.end()) {
    launch->fail(std::string("comes to ") + barrier_name(id) + " twice");
  }
  if (++barrier.arrived == barrier.threads) {
    for (Thread* thread : barrier.waiting) launch->wake(*thread);
    barrier = {};
    return;
  }
  if (!waits) return;
  barrier.waiting.push_back(current);
  launch->wait(barrier_name(id));
}

PhaseBarrier& find_phase_barrier(u32 address) {
  shared_read(address, 8);
  for (auto& [at, barrier] : current->warp->block->phase_barriers) {
    if (at == address) return barrier;
  }
  launch->fail("uses an mbarrier at " + std::to_string(address) + " that was not initialised");
}

/// Ends the phase if nothing of it is missing.
void look_at_phase(PhaseBarrier& barrier) {
  if (barrier.missing != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
  for (Thread* thread : std::exchange(barrier.waiting, {})) launch->wake(*thread);
}

}  // namespace

void sync_block() { arrive(0, current->warp->block->alive / 32 * 32, true); }
void barrier_sync(u32 id, u32 threads) { arrive(id, threads, true); }
void barrier_arrive(u32 id, u32 threads) { arrive(id, threads, false); }

void mbarrier_init(u32 address, u32 arrivals) {
  shared_write(address, 8);
  auto& barriers = current->warp->block->phase_barriers;
  for (const auto& [at, barrier] : barriers) {
    if (at == address) launch->fail("initialises an mbarrier that is in use");
  }
  barriers.push_back({address, PhaseBarrier{arrivals, arrivals, 0, 0, {}}});
}

void mbarrier_arrive(u32 address, u32 expected_bytes) {
  PhaseBarrier& barrier = find_phase_barrier(address);
  if (barrier.missing == 0) {
    launch->fail("arrives at an mbarrier whose " + std::to_string(barrier.arrivals) +
                 " arrivals of this phase have come");
  }
  --barrier.missing;
  barrier.bytes += expected_bytes;
  look_at_phase(barrier);
}

bool mbarrier_test_wait(u32 address, u32 parity) {
  launch->yield();
  return (find_phase_barrier(address).phase & 1U) != parity;
}

bool mbarrier_try_wait(u32 address, u32 parity) {
  PhaseBarrier& barrier = find_phase_barrier(address);
  if ((barrier.phase & 1U) != parity) return true;
  barrier.waiting.push_back(current);
  launch->wait("an mbarrier");
  return true;
}

}  // namespace plait_emulator

namespace plait::emulator {

void add_bytes(Block& block, u32 address, std::int64_t bytes) {
  for (auto& [at, barrier] : block.phase_barriers) {
    if (at != address) continue;
    barrier.bytes -= bytes;
    plait_emulator::look_at_phase(barrier);
    return;
  }
}

void arrive(Block& block, u32 address) {
  for (auto& [at, barrier] : block.phase_barriers) {
    if (at != address) continue;
    if (barrier.missing == 0) break;
    --barrier.missing;
    plait_emulator::look_at_phase(barrier);
    return;
  }
  launch->report("block " + std::to_string(block.index.x) + ": copies arrive at " +
                 std::to_string(address) + ", which is no mbarrier or has no arrival missing");
}

}  // namespace plait::emulator
