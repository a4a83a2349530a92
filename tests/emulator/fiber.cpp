// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

// Callee-saved registers travel on the stack.
asm(R"(
.text
.hidden plait_emulator_switch
.globl plait_emulator_switch
.type plait_emulator_switch, @function
plait_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size plait_emulator_switch, . - plait_emulator_switch
)");

namespace plait::emulator {

namespace {
constexpr std::size_t kGuard = 4096;
}  // namespace

StackPool::~StackPool() {
  for (std::byte* stack : all_) ::munmap(stack - kGuard, kGuard + kBytes);
}

std::byte* StackPool::take() {
  if (free_.empty()) {
    void* memory = ::mmap(nullptr, kGuard + kBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    ::mprotect(memory, kGuard, PROT_NONE);
    all_.push_back(static_cast<std::byte*>(memory) + kGuard);
    free_.push_back(all_.back());
  }
  std::byte* stack = free_.back();
  free_.pop_back();
  return stack;
}

void* prepare_stack(std::byte* stack, void (*entry)()) {
  // Six registers, the entry as the return address, and the place of the entry's own return
  // address, 8 below a multiple of 16 as after a call.
  auto** words = reinterpret_cast<void**>(stack + StackPool::kBytes) - 8;
  for (int i = 0; i < 8; ++i) words[i] = nullptr;
  words[6] = reinterpret_cast<void*>(entry);
  return words;
}

}  // namespace plait::emulator
