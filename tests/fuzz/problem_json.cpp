// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "oracle/parse_problem.h"
#include "plait/error.h"

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
