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
    const plait::serve::Trace trace = plait::serve::read_mooncake(in, "fuzz", 0);
    for (const auto& request : trace.requests) {
      const auto blocks = (request.input_tokens + plait::serve::kTraceBlockTokens - 1) /
                          plait::serve::kTraceBlockTokens;
      if (request.input_tokens < 1 || request.output_tokens < 1 || request.arrival_ns < 0 ||
          std::ssize(request.block_keys) != blocks) {
        std::abort();
      }
    }
  } catch (const plait::Error&) {
  }
  return 0;
}
