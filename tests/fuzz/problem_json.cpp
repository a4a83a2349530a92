// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "oracle/parse_problem.h"
#include "plait/error.h"

/// A problem may ask for tensors as large as the machine; here they stay small.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  return setenv("PLAIT_MEMORY_LIMIT", "4000000", 1);
}

/// Any text is either refused with an Error that names a field, or gives a problem whose spec is
/// valid.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    (void)plait::oracle::parse_problem({reinterpret_cast<const char*>(data), size}, nullptr);
  } catch (const plait::Error& error) {
    if (error.field().empty() || error.expected().empty()) std::abort();
  }
  return 0;
}
