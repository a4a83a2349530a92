// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>

#include "core/device/plan_layout.h"
#include "cuda/device.h"

namespace plait::cuda {

/// Forks a caller's stream into branches that run at the same time and joins them again, by events
/// alone: works the same on a stream and inside a capture.
class Branches {
 public:
  /// `count` branches beside the caller's own stream.
  Branches(std::shared_ptr<DeviceContext> context, int count);
  ~Branches();
  Branches(const Branches&) = delete;
  Branches& operator=(const Branches&) = delete;

  /// The first `count` branches now wait for what `stream` has been given so far.
  void fork(CuStream stream, int count);
  CuStream branch(int index) const noexcept {
    return lanes_[static_cast<std::size_t>(index)].stream;
  }
  /// `stream` waits for the first `count` branches.
  void join(CuStream stream, int count);

 private:
  struct Lane {
    CuStream stream = nullptr;
    CuEvent done = nullptr;
  };

  void destroy() noexcept;

  std::shared_ptr<DeviceContext> context_;
  CuEvent forked_ = nullptr;
  std::array<Lane, device::kMaxClasses> lanes_{};
};

}  // namespace plait::cuda
