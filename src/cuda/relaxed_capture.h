// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/driver.h"

namespace plait::cuda {

/// Lets this thread do what captures forbid while one is open, its own or another thread's: ask
/// about events of uploads, make graphs. None of it is part of that capture.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    driver_.check(driver_.capture_mode_exchange(&mode_), "cuThreadExchangeStreamCaptureMode");
  }
  ~RelaxedCapture() { driver_.capture_mode_exchange(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  CuCaptureMode mode_ = CuCaptureMode::kRelaxed;
};

}  // namespace plait::cuda
