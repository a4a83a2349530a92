// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "plait/error.h"
#include "serve/trace.h"

namespace plait::fuzz {

/// What holds for a request of any trace that was not refused.
inline bool within_limits(const serve::TraceRequest& request) {
  return request.input_tokens >= 1 && request.input_tokens <= serve::kMaxRequestTokens &&
         request.output_tokens >= 1 && request.output_tokens <= serve::kMaxRequestTokens;
}

/// Any bytes are either refused with an Error that names a field, or give requests in the order of
/// their arrival for which `holds(request)`.
template <class Holds>
void read_any_trace(const std::uint8_t* data, std::size_t size, serve::TraceFormat format,
                    const Holds& holds) {
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  try {
    const serve::Trace trace = serve::read_trace(in, "fuzz", format, 0);
    std::int64_t previous = 0;
    for (const serve::TraceRequest& request : trace.requests) {
      if (!within_limits(request) || request.arrival_ns < previous || !holds(request)) {
        std::abort();
      }
      previous = request.arrival_ns;
    }
  } catch (const Error& error) {
    if (error.field().empty() || error.expected().empty()) std::abort();
  }
}

}  // namespace plait::fuzz
