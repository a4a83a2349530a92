// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The one exception type of the public surface. Every refusal names the field, its value and
// what was expected; it is thrown before anything is launched or changed.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace plait {

enum class ErrorCode {
  kInvalidArgument,  // a value is wrong in itself: shape, dtype, index, non-finite scale ...
  kUnsupported,      // valid, but no backend or family serves the combination
  kOverCapacity,     // the batch needs more than the Capacity that the object was made for
  kOutOfMemory,      // an allocator, host or device, returned nothing
  kMismatch,         // a run that does not belong to the plan, spec or device at hand
  kIo,               // a file cannot be read, written or parsed
  kCompile,          // a run-time compiler refused; the message carries its log
  kBackend,          // driver or run-time library missing, too old, or failed
  kInternal,         // a broken invariant of Plait itself: please report
};

/// Short stable name of a code, for example "over_capacity".
std::string_view to_string(ErrorCode code) noexcept;

/// A refusal. `what()` reads "<field>: got <value>, expected <expected>".
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string field, std::string value, std::string expected);

  ErrorCode code() const noexcept { return code_; }
  const std::string& field() const noexcept { return field_; }
  const std::string& value() const noexcept { return value_; }
  const std::string& expected() const noexcept { return expected_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorCode code_;
  std::string field_;
  std::string value_;
  std::string expected_;
  std::string message_;
};

}  // namespace plait
