// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "fuzz/trace_limits.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  plait::fuzz::read_any_trace(
      data, size, plait::serve::TraceFormat::kAzure,
      [](const plait::serve::TraceRequest& request) { return request.block_keys.empty(); });
  return 0;
}
