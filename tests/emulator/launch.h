// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A launch while it runs: blocks of warps of threads, each thread a fiber, all on one thread of the
// host. A thread runs until it waits, or until it is interrupted before an access of memory; which
// one goes on is drawn from a seed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "emulator/fiber.h"
#include "emulator/kernel/runtime.h"
#include "emulator/module.h"

namespace plait::emulator {

using plait_emulator::Dim;
using plait_emulator::u32;
using plait_emulator::u64;

struct Block;
struct WarpgroupWork;

/// cp.async of one thread. Data lands at once or as late as the wait allows; until the wait nobody
/// may touch the target.
struct ThreadCopy {
  u32 target;
  u32 bytes, valid;
  const void* source;
  bool landed;
};

struct Warp;

struct Thread {
  Warp* warp = nullptr;
  int lane = 0;
  Dim index{};
  std::byte* stack = nullptr;
  void* stack_pointer = nullptr;
  const char* waiting = nullptr;               // for what; null: it may run
  std::deque<std::vector<ThreadCopy>> copies;  // committed groups, oldest first
  std::vector<ThreadCopy> open_copies;
};

struct Warp {
  Block* block = nullptr;
  Thread lanes[32];
  u32 runnable = ~0U;
  // The collective under way: who came, with what.
  const char* operation = nullptr;
  u32 arrived = 0;
  void* arguments[32] = {};
  std::shared_ptr<WarpgroupWork> products;  // of wgmma, see wgmma.cpp
};

struct NamedBarrier {
  u32 threads = 0;  // that it waits for; 0: nobody has come
  u32 arrived = 0;
  std::vector<Thread*> waiting;
};

/// An mbarrier: phases complete when all arrivals and all announced bytes have come.
struct PhaseBarrier {
  u32 arrivals = 0;
  u32 missing = 0;
  std::int64_t bytes = 0;
  u32 phase = 0;
  std::vector<Thread*> waiting;
};

/// A box on its way.
struct TensorCopy {
  u32 target, barrier;
  u64 map;
  std::int32_t at[5];
};

/// An arrival that waits for the copies which a thread had started.
struct CopyArrival {
  u32 barrier;
  std::vector<ThreadCopy> copies;
};

/// Shared memory of a block. Its window begins where the hardware's does for a kernel without
/// static shared memory, and a host address has the window address's remainder by 1024.
struct SharedMemory {
  static constexpr u32 kFirst = 1024;
  static constexpr u32 kPromised = 16;  // a kernel is promised multiples of 16, not of 1024

  explicit SharedMemory(u32 bytes);
  bool holds(const void* pointer) const { return pointer >= base && pointer < base + size; }
  u32 window(const void* pointer) const {
    return kFirst + kPromised + static_cast<u32>(static_cast<const std::byte*>(pointer) - base);
  }
  std::byte* pointer(u32 address) const {
    return base + (static_cast<std::int64_t>(address) - kFirst - kPromised);
  }
  std::unique_ptr<std::byte[]> memory;
  std::byte* base = nullptr;
  u32 size;
  std::vector<std::uint8_t> in_flight;  // per word: asynchronous copies that will write it
  void mark(u32 address, u32 bytes, int change);
};

struct Block {
  Block(Dim at, u32 threads, u32 shared_bytes);

  Dim index;
  SharedMemory shared;
  std::vector<std::unique_ptr<Warp>> warps;
  u32 alive;  // threads
  NamedBarrier barriers[16];
  std::deque<std::pair<u32, PhaseBarrier>> phase_barriers;  // by window address
  std::vector<TensorCopy> tensor_copies;
  std::vector<CopyArrival> copy_arrivals;
  bool has_copies() const { return !tensor_copies.empty() || !copy_arrivals.empty(); }
};

struct LaunchShape {
  Dim grid, block;
  u32 shared_bytes;
};

class Launch {
 public:
  Launch(const Module& module, LaunchShape shape, void* const* arguments);
  ~Launch();

  /// Empty, or what went wrong, where, and the seed.
  std::string run();

  const Module& module() const { return module_; }
  const LaunchShape& shape() const { return shape_; }
  std::mt19937& random() { return random_; }
  bool coin() { return (random_() & 1U) != 0; }

  /// Called by the running thread: goes on when somebody has cleared `waiting`.
  void wait(const char* for_what);
  /// Lets others run first.
  void yield();
  void wake(Thread& thread);
  [[noreturn]] void fail(const std::string& what);
  /// The same for what no thread does: the launch ends at the next switch.
  void report(const std::string& what);

 private:
  static void thread_main();
  void start_block();
  void finish_thread();
  Warp* choose_warp();
  bool complete_some_copy();
  std::string deadlock() const;
  std::string describe(const std::string& what) const;

  const Module& module_;
  LaunchShape shape_;
  void* const* arguments_;
  std::mt19937 random_;
  u64 seed_;
  std::vector<u32> waiting_blocks_;  // linear indices, in the order in which they will start
  std::vector<std::unique_ptr<Block>> blocks_;
  StackPool& stacks_;
  void* scheduler_ = nullptr;
  bool choose_again_ = true;
  std::string error_;
};

/// What runs; null outside of a launch.
extern Launch* launch;
extern Thread* current;

/// Counts the calling lane in; true for the last lane of the warp, which then does the operation
/// and releases the others. The others return when that has happened.
bool meet(const char* operation, void* arguments);
void release(Warp& warp);

/// A warp collective: `perform(lane)` sees every lane's arguments.
template <typename Arguments, typename Perform>
void collective(const char* operation, Arguments& mine, Perform perform) {
  Warp& warp = *current->warp;
  if (!meet(operation, &mine)) return;
  perform(
      [&warp](u32 lane) -> Arguments& { return *static_cast<Arguments*>(warp.arguments[lane]); });
  release(warp);
}

/// Of a barrier at window address `address`: bytes of a box have come, a thread arrives.
void add_bytes(Block& block, u32 address, std::int64_t bytes);
void arrive(Block& block, u32 address);
/// See copies.cpp: where the copy engine puts what belongs at a window address, and the end of any
/// one of the block's copies.
u32 swizzled(u32 address);
void complete_some_copy(Block& block);
/// Whether products of wgmma are under way.
bool has_products(const Warp& warp);

}  // namespace plait::emulator
