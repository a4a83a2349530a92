// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/setup_scope.h"

namespace plait::cuda {

SetupScope::SetupScope(const DeviceContext& context)
    : driver_(context.driver()), current_(context) {
  driver_.check(driver_.capture_mode_exchange(&mode_), "cuThreadExchangeStreamCaptureMode");
}

SetupScope::~SetupScope() { driver_.capture_mode_exchange(&mode_); }

TeardownScope::TeardownScope(const DeviceContext& context) noexcept
    : driver_(context.driver()), pushed_(driver_.context_push(context.handle()) == kCuSuccess) {
  if (pushed_) relaxed_ = driver_.capture_mode_exchange(&mode_) == kCuSuccess;
}

TeardownScope::~TeardownScope() {
  if (relaxed_) driver_.capture_mode_exchange(&mode_);
  CuContext popped = nullptr;
  if (pushed_) driver_.context_pop(&popped);
}

}  // namespace plait::cuda
