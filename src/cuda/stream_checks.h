// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What is asked of streams before anything is enqueued, so that a refusal leaves everything as it
// was, captures included.
#pragma once

#include <cstdint>

#include "cuda/device.h"

namespace plait::cuda {

/// Throws what `call`, which asks whether a stream is being captured, failed with: Error{kMismatch}
/// for the legacy stream while a stream is captured that waits for it.
void check_capture_query(const Driver& driver, CuResult result, const char* call,
                         const char* field);

/// The capture that a stream is part of, and its graph; null and 0 without one.
struct CaptureInfo {
  CuCaptureStatus status = CuCaptureStatus::kNone;
  std::uint64_t id = 0;
  CuGraph graph = nullptr;
};

/// Throws as check_capture_query does.
CaptureInfo capture_info(const Driver& driver, CuStream stream, const char* field);

/// Throws Error{kMismatch} for a stream that is being captured, and for the legacy one while a
/// stream is captured that waits for it.
void refuse_capture(const Driver& driver, CuStream stream, const char* field, const char* expected);

/// Throws Error{kInvalidArgument} for a stream of another device. The driver would accept a copy on
/// it and refuse the event behind.
void refuse_foreign_stream(const DeviceContext& context, CuStream stream, const char* field);

/// Throws Error{kMismatch} while a stream is being captured that waits for the legacy stream: using
/// that one would end the capture. `what` is to be made.
void require_legacy_stream(const DeviceContext& context, const char* what);

}  // namespace plait::cuda
