// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// A loaded kernel.
#pragma once

#include <cstdint>
#include <string>

namespace plait::emulator {

struct Module {
  void* library = nullptr;
  std::string name;                      // of the kernel
  const unsigned* parameters = nullptr;  // bytes of each, then 0
  void (*thread)(void* const* arguments) = nullptr;
  std::uintptr_t begin = 0, end = 0;  // its constants lie here
};

}  // namespace plait::emulator
