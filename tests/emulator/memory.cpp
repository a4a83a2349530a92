// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "emulator/memory.h"

#include <cstdio>
#include <ctime>

#include "cuda_fake/fake_cuda.h"
#include "emulator/launch.h"

namespace plait::emulator {
namespace {

std::string text_of(const void* address, std::size_t bytes, Access access) {
  char text[96];
  std::snprintf(text, sizeof(text), "%s %zu bytes at %p",
                access == Access::kRead ? "reads" : "writes", bytes, address);
  return text;
}

bool in_allocation(std::uintptr_t begin, std::uintptr_t end) {
  const auto& allocations = plait_fake_cuda_state()->device_memory;
  auto found = allocations.upper_bound(begin);
  if (found == allocations.begin()) return false;
  --found;
  return end <= found->first + found->second.first;
}

void check_shared(const SharedMemory& shared, const void* address, std::size_t bytes,
                  Access access) {
  const auto offset =
      static_cast<std::size_t>(static_cast<const std::byte*>(address) - shared.base);
  if (offset + bytes > shared.size) {
    launch->fail(text_of(address, bytes, access) + ", past the " + std::to_string(shared.size) +
                 " bytes of shared memory");
  }
  for (std::size_t word = offset / 4; word <= (offset + bytes - 1) / 4; ++word) {
    if (shared.in_flight[word] == 0) continue;
    launch->fail(text_of(address, bytes, access) + ", byte " + std::to_string(word * 4) +
                 " of shared memory, which an asynchronous copy that nobody waited for writes");
  }
}

}  // namespace

bool on_own_stack(const void* address, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const auto stack = reinterpret_cast<std::uintptr_t>(current->stack);
  return begin >= stack && begin + bytes <= stack + StackPool::kBytes;
}

void check_access(const void* address, std::size_t bytes, Access access) {
  if (on_own_stack(address, bytes)) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const auto end = begin + bytes;
  const SharedMemory& shared = current->warp->block->shared;
  if (shared.holds(address)) return check_shared(shared, address, bytes, access);
  const Module& module = launch->module();
  if (access == Access::kRead && begin >= module.begin && end <= module.end) return;
  if (in_allocation(begin, end)) return;
  launch->fail(text_of(address, bytes, access) + ", which is no memory of the device");
}

}  // namespace plait::emulator

namespace plait_emulator {

using plait::emulator::Access;
using plait::emulator::check_access;
using plait::emulator::current;
using plait::emulator::launch;
using plait::emulator::SharedMemory;

void* dynamic_shared() { return current->warp->block->shared.base; }

u32 shared_window(const void* pointer) { return current->warp->block->shared.window(pointer); }

namespace {

void* shared_pointer(u32 address, u32 bytes, Access access) {
  const SharedMemory& shared = current->warp->block->shared;
  std::byte* pointer = shared.pointer(address);
  if (!shared.holds(pointer) || address % (bytes < 16 ? bytes : 16) != 0) {
    launch->fail("accesses shared address " + std::to_string(address) +
                 ", outside of its shared memory or no multiple of the access");
  }
  check_access(pointer, bytes, access);
  return pointer;
}

}  // namespace

void* shared_read(u32 address, u32 bytes) { return shared_pointer(address, bytes, Access::kRead); }
void* shared_write(u32 address, u32 bytes) {
  return shared_pointer(address, bytes, Access::kWrite);
}

u32 atomic_add(u32* address, u32 value) {
  launch->yield();
  check_access(address, 4, Access::kWrite);
  return (*address += value) - value;
}
u32 atomic_or(u32* address, u32 value) {
  launch->yield();
  check_access(address, 4, Access::kWrite);
  const u32 before = *address;
  *address |= value;
  return before;
}

u64 nanoseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<u64>(now.tv_sec) * 1000000000U + static_cast<u64>(now.tv_nsec);
}

}  // namespace plait_emulator

// ---- what the compiler calls before accesses (see toolchain.cpp) -------------------------------

using plait::emulator::Access;
using plait::emulator::check_access;
using plait::emulator::launch;
using plait::emulator::on_own_stack;

namespace {

/// Once in a while somebody else goes first. On its stack the compiler moves 16 bytes of what it
/// aligned to 8, which are registers of a GPU.
void access(const void* address, std::size_t bytes, Access kind, std::size_t alignment) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0 && !on_own_stack(address, bytes)) {
    launch->fail("accesses " + std::to_string(bytes) + " bytes at an address that is no multiple");
  }
  if ((launch->random()() & 255U) == 0) launch->yield();
  check_access(address, bytes, kind);
}

}  // namespace

#define PLAIT_HOOK extern "C" __attribute__((visibility("default"))) void
#define PLAIT_HOOKS(bytes)                                                                   \
  PLAIT_HOOK __tsan_read##bytes(void* at) { access(at, bytes, Access::kRead, bytes); }       \
  PLAIT_HOOK __tsan_write##bytes(void* at) { access(at, bytes, Access::kWrite, bytes); }     \
  PLAIT_HOOK __tsan_unaligned_read##bytes(void* at) { access(at, bytes, Access::kRead, 1); } \
  PLAIT_HOOK __tsan_unaligned_write##bytes(void* at) { access(at, bytes, Access::kWrite, 1); }
PLAIT_HOOKS(1)
PLAIT_HOOKS(2)
PLAIT_HOOKS(4)
PLAIT_HOOKS(8)
PLAIT_HOOKS(16)
PLAIT_HOOK __tsan_read_range(void* at, unsigned long bytes) { access(at, bytes, Access::kRead, 1); }
PLAIT_HOOK __tsan_write_range(void* at, unsigned long bytes) {
  access(at, bytes, Access::kWrite, 1);
}
PLAIT_HOOK __tsan_init() {}
