// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "emulator/launch.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

namespace plait::emulator {

Launch* launch = nullptr;
Thread* current = nullptr;

namespace {

/// Blocks that run at a time.
constexpr std::size_t kResidentBlocks = 4;

u64 seed_from_environment() {
  const char* text = std::getenv("PLAIT_EMULATOR_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

StackPool& process_stacks() {
  static StackPool pool;
  return pool;
}

std::string range_text(u32 first, u32 last) {
  return first == last ? std::to_string(first) : std::to_string(first) + "-" + std::to_string(last);
}

}  // namespace

SharedMemory::SharedMemory(u32 bytes)
    : memory(new std::byte[bytes + 2048]), size(bytes), in_flight(bytes / 4 + 1) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.get());
  base = memory.get() + (1024 - address % 1024) + kPromised;
  std::memset(base, 0xFF, size);  // NaN
}

void SharedMemory::mark(u32 address, u32 bytes, int change) {
  const u32 offset = address - window(base);
  for (u32 word = offset / 4; word < (offset + bytes + 3) / 4; ++word) {
    in_flight[word] = static_cast<std::uint8_t>(in_flight[word] + change);
  }
}

Block::Block(Dim at, u32 threads, u32 shared_bytes)
    : index(at), shared(shared_bytes), alive(threads) {
  for (u32 first = 0; first < threads; first += 32) {
    Warp& warp = *warps.emplace_back(std::make_unique<Warp>());
    warp.block = this;
    for (u32 lane = 0; lane < 32; ++lane) {
      warp.lanes[lane].warp = &warp;
      warp.lanes[lane].lane = static_cast<int>(lane);
      warp.lanes[lane].index = {first + lane, 0, 0};
    }
  }
}

Launch::Launch(const Module& module, LaunchShape shape, void* const* arguments)
    : module_(module),
      shape_(shape),
      arguments_(arguments),
      seed_(seed_from_environment()),
      waiting_blocks_(shape.grid.x),
      stacks_(process_stacks()) {
  // The kernel's name, so that a problem run on its own meets the schedule it met among others.
  random_.seed(static_cast<u32>(seed_ ^ std::hash<std::string>()(module.name)));
  std::iota(waiting_blocks_.begin(), waiting_blocks_.end(), 0U);
  std::shuffle(waiting_blocks_.begin(), waiting_blocks_.end(), random_);
}

Launch::~Launch() {
  for (const auto& block : blocks_) {
    for (const auto& warp : block->warps) {
      for (Thread& thread : warp->lanes) {
        if (thread.stack != nullptr) stacks_.give_back(thread.stack);
      }
    }
  }
}

void Launch::start_block() {
  const Dim index{waiting_blocks_.back(), 0, 0};
  waiting_blocks_.pop_back();
  Block& block =
      *blocks_.emplace_back(std::make_unique<Block>(index, shape_.block.x, shape_.shared_bytes));
  for (const auto& warp : block.warps) {
    for (Thread& thread : warp->lanes) {
      thread.stack = stacks_.take();
      thread.stack_pointer = prepare_stack(thread.stack, &Launch::thread_main);
    }
  }
}

void Launch::thread_main() {
  launch->module_.thread(launch->arguments_);
  launch->finish_thread();
}

void Launch::finish_thread() {
  Block& block = *current->warp->block;
  const auto lands = [](const std::vector<ThreadCopy>& group) { return !group.empty(); };
  if (lands(current->open_copies) ||
      std::any_of(current->copies.begin(), current->copies.end(), lands)) {
    fail("ends with asynchronous copies that it never waited for");
  }
  if (has_products(*current->warp)) fail("ends with products that it never waited for");
  if (--block.alive == 0 && block.has_copies()) {
    fail("ends its block with copies on their way");
  }
  // A barrier of the whole block does not wait for threads that have ended.
  NamedBarrier& whole = block.barriers[0];
  if (whole.threads > block.alive) whole.threads = block.alive;
  if (whole.arrived > 0 && whole.arrived == whole.threads) {
    for (Thread* thread : std::exchange(whole.waiting, {})) wake(*thread);
    whole = {};
  }
  wait("its end");
  std::abort();
}

void Launch::wait(const char* for_what) {
  current->waiting = for_what;
  current->warp->runnable &= ~(1U << current->lane);
  plait_emulator_switch(&current->stack_pointer, scheduler_);
}

void Launch::yield() {
  choose_again_ = true;
  plait_emulator_switch(&current->stack_pointer, scheduler_);
}

void Launch::wake(Thread& thread) {
  thread.waiting = nullptr;
  thread.warp->runnable |= 1U << thread.lane;
}

std::string Launch::describe(const std::string& what) const {
  return "kernel " + module_.name + ": " + what + " (PLAIT_EMULATOR_SEED=" + std::to_string(seed_) +
         ")";
}

void Launch::fail(const std::string& what) {
  error_ = describe("block " + std::to_string(current->warp->block->index.x) + ", thread " +
                    std::to_string(current->index.x) + " " + what);
  void* ignored = nullptr;
  plait_emulator_switch(&ignored, scheduler_);
  std::abort();
}

void Launch::report(const std::string& what) { error_ = describe(what); }

bool Launch::complete_some_copy() {
  for (const auto& block : blocks_) {
    if (!block->has_copies()) continue;
    plait::emulator::complete_some_copy(*block);
    return true;
  }
  return false;
}

Warp* Launch::choose_warp() {
  std::vector<Warp*> runnable;
  for (const auto& block : blocks_) {
    for (const auto& warp : block->warps) {
      if (warp->runnable != 0) runnable.push_back(warp.get());
    }
  }
  return runnable.empty() ? nullptr : runnable[random_() % runnable.size()];
}

std::string Launch::deadlock() const {
  std::string text;
  for (const auto& block : blocks_) {
    text += "; block " + std::to_string(block->index.x) + ":";
    const char* waiting = nullptr;
    u32 first = 0;
    u32 last = 0;
    const auto flush = [&] {
      if (waiting != nullptr) {
        text += " threads " + range_text(first, last) + " wait for " + waiting + ",";
      }
    };
    for (const auto& warp : block->warps) {
      for (const Thread& thread : warp->lanes) {
        if (waiting == nullptr || std::strcmp(waiting, thread.waiting) != 0) {
          flush();
          waiting = thread.waiting;
          first = thread.index.x;
        }
        last = thread.index.x;
      }
    }
    flush();
    text.pop_back();
  }
  return "nobody can go on" + text;
}

std::string Launch::run() {
  launch = this;
  Warp* warp = nullptr;
  u32 steps = 0;  // until another warp gets its turn
  while (error_.empty()) {
    std::erase_if(blocks_, [this](const auto& block) {
      if (block->alive > 0) return false;
      for (const auto& one : block->warps) {
        for (Thread& thread : one->lanes) {
          stacks_.give_back(std::exchange(thread.stack, nullptr));
        }
      }
      return true;
    });
    while (!waiting_blocks_.empty() && blocks_.size() < kResidentBlocks) start_block();
    if (blocks_.empty()) break;
    if (random_() % 8 == 0) complete_some_copy();
    warp = choose_warp();
    if (warp == nullptr) {
      if (complete_some_copy()) continue;
      error_ = describe(deadlock());
      break;
    }
    choose_again_ = false;
    // Turns of very different lengths, so that warps drift apart.
    steps = 1U << (random_() % 12);
    while (steps-- > 0 && warp->runnable != 0 && !choose_again_ && error_.empty()) {
      const int shift = static_cast<int>(random_() & 31U);
      const int lane = (std::countr_zero(std::rotr(warp->runnable, shift)) + shift) & 31;
      current = &warp->lanes[lane];
      plait_emulator_switch(&scheduler_, current->stack_pointer);
    }
  }
  launch = nullptr;
  current = nullptr;
  return error_;
}

bool meet(const char* operation, void* arguments) {
  Warp& warp = *current->warp;
  if (warp.arrived == 0) warp.operation = operation;
  if (std::strcmp(warp.operation, operation) != 0) {
    launch->fail(std::string("comes to ") + operation + " where other lanes of its warp wait in " +
                 warp.operation);
  }
  warp.arguments[current->lane] = arguments;
  warp.arrived |= 1U << current->lane;
  if (warp.arrived == ~0U) return true;
  launch->wait(operation);
  return false;
}

void release(Warp& warp) {
  warp.arrived = 0;
  for (Thread& thread : warp.lanes) {
    if (&thread != current) launch->wake(thread);
  }
}

}  // namespace plait::emulator

namespace plait_emulator {

using plait::emulator::current;
using plait::emulator::launch;

Dim thread_index() { return current->index; }
Dim block_index() { return current->warp->block->index; }
Dim block_dim() { return launch->shape().block; }
Dim grid_dim() { return launch->shape().grid; }

}  // namespace plait_emulator
