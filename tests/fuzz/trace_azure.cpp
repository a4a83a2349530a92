// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "plait/error.h"
#include "serve/trace.h"

/// Any bytes are either refused with an Error or give requests within the documented limits.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  try {
    const plait::serve::Trace trace = plait::serve::read_azure(in, "fuzz", 0);
    std::int64_t previous = 0;
    for (const auto& request : trace.requests) {
      if (request.input_tokens < 1 || request.output_tokens < 1 || request.arrival_ns < previous) {
        std::abort();
      }
      previous = request.arrival_ns;
    }
  } catch (const plait::Error&) {
  }
  return 0;
}
