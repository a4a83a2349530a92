// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Stacks and switching between them, for x86-64.
#pragma once

#include <cstddef>
#include <vector>

namespace plait::emulator {

/// Saves the caller's stack pointer in `*from` and goes on where `to` was saved.
extern "C" void plait_emulator_switch(void** from, void* to);

/// Stacks of equal size with a guard page each, made once and used again.
class StackPool {
 public:
  static constexpr std::size_t kBytes = 128 * 1024;

  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  /// Lowest usable address of a stack.
  std::byte* take();
  void give_back(std::byte* stack) { free_.push_back(stack); }

 private:
  std::vector<std::byte*> all_, free_;
};

/// What to switch to so that `entry`, which never returns, begins on `stack`.
void* prepare_stack(std::byte* stack, void (*entry)());

}  // namespace plait::emulator
