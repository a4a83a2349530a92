// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/device.h"

namespace plait::cuda {

/// Pinned host memory from which plans are copied to the device. A ring: a slot is written again
/// only after the copy that read it has finished, by that copy's own event or a later one of its
/// stream, so that several plans may be under way at once. Not thread safe, as the Attention that
/// owns it.
class StagingRing {
 public:
  static constexpr int kSlots = 4;

  /// Each slot holds `zero_bytes` that are 0, and `plan_bytes` after them.
  StagingRing(std::shared_ptr<DeviceContext> context, std::int64_t zero_bytes,
              std::int64_t plan_bytes);
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  /// The place of a plan in the next slot, the same until `release`; the zeros lie before it. Waits
  /// for the slot's last copy, which only happens with kSlots plans under way.
  std::byte* next();
  /// The same, for a copy on `stream`.
  std::byte* acquire(CuStream stream);
  /// Says that the copy from the slot acquired last is enqueued on `stream`.
  void release(CuStream stream);

 private:
  struct Slot {
    void* memory = nullptr;
    CuEvent copied = nullptr;
    std::uint64_t stream_id = 0;  // a handle may be another stream's by now
    bool in_use = false;
  };

  /// Frees what the last copy but one says about those before it in its stream: asking the driver
  /// about an event takes as long as enqueueing a copy, and this one has nearly always finished.
  void reclaim();
  Slot& next_slot() noexcept;
  void destroy() noexcept;

  std::shared_ptr<DeviceContext> context_;
  std::int64_t zero_bytes_;
  std::array<Slot, kSlots> slots_;
  int latest_ = 0;  // the slot released last
};

}  // namespace plait::cuda
