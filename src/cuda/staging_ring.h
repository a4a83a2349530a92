// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/device.h"

namespace plait::cuda {

/// Pinned host memory from which plans are copied to the device. A ring: a slot is written again
/// only after the copy that read it has finished, by that copy's own event, so that several plans
/// may be under way at once. Not thread safe, as the Attention that owns it.
class StagingRing {
 public:
  static constexpr int kSlots = 4;

  StagingRing(std::shared_ptr<DeviceContext> context, std::int64_t slot_bytes);
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  /// The next slot. Waits for its last copy, which only happens with kSlots plans under way.
  void* acquire();
  /// Says that the copy from the slot acquired last is enqueued on `stream`.
  void release(CuStream stream);

 private:
  struct Slot {
    void* memory = nullptr;
    CuEvent copied = nullptr;
    bool in_use = false;
  };

  void destroy() noexcept;

  std::shared_ptr<DeviceContext> context_;
  std::array<Slot, kSlots> slots_;
  int current_ = 0;
};

}  // namespace plait::cuda
