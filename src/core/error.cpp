// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/error.h"

#include <utility>

namespace plait {

std::string_view to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid_argument";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kOverCapacity: return "over_capacity";
    case ErrorCode::kOutOfMemory: return "out_of_memory";
    case ErrorCode::kMismatch: return "mismatch";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kCompile: return "compile";
    case ErrorCode::kBackend: return "backend";
    case ErrorCode::kInternal: return "internal";
  }
  return "unknown";
}

Error::Error(ErrorCode code, std::string field, std::string value, std::string expected)
    : code_(code),
      field_(std::move(field)),
      value_(std::move(value)),
      expected_(std::move(expected)),
      message_(field_ + ": got " + value_ + ", expected " + expected_) {}

}  // namespace plait
