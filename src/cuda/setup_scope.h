// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/device.h"

namespace plait::cuda {

/// Makes a device's context current for what a capture forbids to its own thread, and in global
/// mode to every thread: to allocate and to free, to load and to unload, to wait, to make graphs
/// and to destroy them. None of it is part of the capture, and without this scope it would fail and
/// end the capture.
class SetupScope {
 public:
  explicit SetupScope(const DeviceContext& context);
  ~SetupScope();
  SetupScope(const SetupScope&) = delete;
  SetupScope& operator=(const SetupScope&) = delete;

 private:
  const Driver& driver_;
  ContextScope current_;
  CuCaptureMode mode_ = CuCaptureMode::kRelaxed;
};

/// The same where nothing may throw, in destructors above all. False if the driver refuses, as it
/// does at the end of the process.
class TeardownScope {
 public:
  explicit TeardownScope(const DeviceContext& context) noexcept;
  ~TeardownScope();
  TeardownScope(const TeardownScope&) = delete;
  TeardownScope& operator=(const TeardownScope&) = delete;

  explicit operator bool() const noexcept { return pushed_; }

 private:
  const Driver& driver_;
  bool pushed_;
  bool relaxed_ = false;
  CuCaptureMode mode_ = CuCaptureMode::kRelaxed;
};

}  // namespace plait::cuda
