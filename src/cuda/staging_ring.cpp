// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/staging_ring.h"

#include <string>
#include <utility>

#include "plait/error.h"

namespace plait::cuda {

StagingRing::StagingRing(std::shared_ptr<DeviceContext> context, std::int64_t slot_bytes)
    : context_(std::move(context)) {
  const ContextScope scope(*context_);
  const Driver& driver = context_->driver();
  try {
    for (Slot& slot : slots_) {
      const CuResult result =
          driver.mem_host_alloc(&slot.memory, static_cast<std::size_t>(slot_bytes), 0);
      if (result == kCuErrorOutOfMemory) {
        throw Error(ErrorCode::kOutOfMemory, "plan staging",
                    std::to_string(slot_bytes) + " bytes of pinned host memory", "that much");
      }
      driver.check(result, "cuMemHostAlloc");
      driver.check(driver.event_create(&slot.copied, kCuEventDisableTiming), "cuEventCreate");
    }
  } catch (...) {
    destroy();
    throw;
  }
}

StagingRing::~StagingRing() {
  const Driver& driver = context_->driver();
  if (driver.context_push(context_->handle()) != kCuSuccess) return;
  destroy();
  CuContext popped = nullptr;
  driver.context_pop(&popped);
}

void StagingRing::destroy() noexcept {
  const Driver& driver = context_->driver();
  for (Slot& slot : slots_) {
    if (slot.in_use) driver.event_synchronize(slot.copied);
    if (slot.copied != nullptr) driver.event_destroy(slot.copied);
    if (slot.memory != nullptr) driver.mem_host_free(slot.memory);
  }
}

void* StagingRing::acquire() {
  current_ = (current_ + 1) % kSlots;
  Slot& slot = slots_[static_cast<std::size_t>(current_)];
  if (slot.in_use) {
    const Driver& driver = context_->driver();
    driver.check(driver.event_synchronize(slot.copied), "cuEventSynchronize");
    slot.in_use = false;
  }
  return slot.memory;
}

void StagingRing::release(CuStream stream) {
  Slot& slot = slots_[static_cast<std::size_t>(current_)];
  const Driver& driver = context_->driver();
  driver.check(driver.event_record(slot.copied, stream), "cuEventRecord");
  slot.in_use = true;
}

}  // namespace plait::cuda
