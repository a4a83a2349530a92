// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <iterator>

#include "fuzz/trace_limits.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  plait::fuzz::read_any_trace(data, size, plait::serve::TraceFormat::kMooncake,
                              [](const plait::serve::TraceRequest& request) {
                                constexpr auto kTokens = plait::serve::kTraceBlockTokens;
                                return std::ssize(request.block_keys) ==
                                       (request.input_tokens + kTokens - 1) / kTokens;
                              });
  return 0;
}
