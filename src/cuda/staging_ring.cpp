// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/staging_ring.h"

#include <cstring>
#include <string>
#include <utility>

#include "cuda/setup_scope.h"
#include "plait/error.h"

namespace plait::cuda {
StagingRing::StagingRing(std::shared_ptr<DeviceContext> context, std::int64_t zero_bytes,
                         std::int64_t plan_bytes)
    : context_(std::move(context)), zero_bytes_(zero_bytes) {
  const std::int64_t slot_bytes = zero_bytes + plan_bytes;
  const SetupScope scope(*context_);
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
      std::memset(slot.memory, 0, static_cast<std::size_t>(zero_bytes));
      driver.check(driver.event_create(&slot.copied, kCuEventDisableTiming), "cuEventCreate");
    }
  } catch (...) {
    destroy();
    throw;
  }
}

StagingRing::~StagingRing() {
  if (const TeardownScope scope(*context_); scope) destroy();
}

void StagingRing::destroy() noexcept {
  const Driver& driver = context_->driver();
  for (Slot& slot : slots_) {
    if (slot.in_use) driver.event_synchronize(slot.copied);
    if (slot.copied != nullptr) driver.event_destroy(slot.copied);
    if (slot.memory != nullptr) driver.mem_host_free(slot.memory);
  }
}

void StagingRing::reclaim() {
  const Driver& driver = context_->driver();
  const Slot& asked = slots_[static_cast<std::size_t>((latest_ + kSlots - 1) % kSlots)];
  const CuResult result = driver.event_query(asked.copied);
  if (result == kCuErrorNotReady) return;
  driver.check(result, "cuEventQuery");
  for (int index = 0; index < kSlots; ++index) {
    Slot& slot = slots_[static_cast<std::size_t>(index)];
    if (index != latest_ && slot.stream_id == asked.stream_id) slot.in_use = false;
  }
}

StagingRing::Slot& StagingRing::next_slot() noexcept {
  return slots_[static_cast<std::size_t>((latest_ + 1) % kSlots)];
}

std::byte* StagingRing::next() {
  Slot& slot = next_slot();
  if (slot.in_use) {
    const SetupScope scope(*context_);
    reclaim();
    if (slot.in_use) {
      const Driver& driver = context_->driver();
      driver.check(driver.event_synchronize(slot.copied), "cuEventSynchronize");
      slot.in_use = false;
    }
  }
  return static_cast<std::byte*>(slot.memory) + zero_bytes_;
}

std::byte* StagingRing::acquire(CuStream stream) {
  std::byte* const place = next();
  const Driver& driver = context_->driver();
  driver.check(driver.stream_get_id(stream, &next_slot().stream_id), "cuStreamGetId");
  return place;
}

void StagingRing::release(CuStream stream) {
  Slot& slot = next_slot();
  const Driver& driver = context_->driver();
  driver.check(driver.event_record(slot.copied, stream), "cuEventRecord");
  slot.in_use = true;
  latest_ = (latest_ + 1) % kSlots;
}

}  // namespace plait::cuda
