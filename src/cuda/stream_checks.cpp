// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/stream_checks.h"

#include <string>

#include "plait/error.h"

namespace plait::cuda {

void check_capture_query(const Driver& driver, CuResult result, const char* call,
                         const char* field) {
  if (result == kCuErrorStreamCaptureImplicit) {
    throw Error(ErrorCode::kMismatch, field,
                "the legacy stream while a stream is captured that waits for it",
                "another stream, or captures of streams created with cudaStreamNonBlocking");
  }
  driver.check(result, call);
}

CaptureInfo capture_info(const Driver& driver, CuStream stream, const char* field) {
  CaptureInfo info;
  check_capture_query(
      driver,
      driver.stream_get_capture_info(stream, &info.status, &info.id, &info.graph, nullptr, nullptr),
      "cuStreamGetCaptureInfo", field);
  return info;
}

void refuse_capture(const Driver& driver, CuStream stream, const char* field,
                    const char* expected) {
  CuCaptureStatus capturing = CuCaptureStatus::kNone;
  check_capture_query(driver, driver.stream_is_capturing(stream, &capturing), "cuStreamIsCapturing",
                      field);
  if (capturing == CuCaptureStatus::kNone) return;
  throw Error(ErrorCode::kMismatch, field, "a stream that is being captured", expected);
}

void refuse_foreign_stream(const DeviceContext& context, CuStream stream, const char* field) {
  const Driver& driver = context.driver();
  CuContext owner = nullptr;
  driver.check(driver.stream_get_context(stream, &owner), "cuStreamGetCtx");
  if (owner == context.handle()) return;
  // One device may have several contexts, green ones above all.
  CuDevice device = 0;
  CuContext popped = nullptr;
  driver.check(driver.context_push(owner), "cuCtxPushCurrent");
  const CuResult result = driver.context_get_device(&device);
  driver.context_pop(&popped);
  driver.check(result, "cuCtxGetDevice");
  if (device == context.device()) return;
  throw Error(ErrorCode::kInvalidArgument, field, "a stream of cuda:" + std::to_string(device),
              "one of cuda:" + std::to_string(context.facts().ordinal));
}

void require_legacy_stream(const DeviceContext& context, const char* what) {
  const Driver& driver = context.driver();
  const ContextScope scope(context);
  // The one question about that stream which harms no capture.
  CuCaptureStatus status = CuCaptureStatus::kNone;
  const CuResult result = driver.stream_is_capturing(nullptr, &status);
  if (result != kCuErrorStreamCaptureImplicit) {
    driver.check(result, "cuStreamIsCapturing");
    return;
  }
  throw Error(ErrorCode::kMismatch, what,
              "to be made while a stream is captured that waits for the legacy stream",
              "captures of streams created with cudaStreamNonBlocking, or none meanwhile");
}

}  // namespace plait::cuda
