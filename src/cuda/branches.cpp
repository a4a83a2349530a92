// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/branches.h"

#include <utility>

#include "cuda/setup_scope.h"

namespace plait::cuda {

Branches::Branches(std::shared_ptr<DeviceContext> context, int count)
    : context_(std::move(context)) {
  if (count == 0) return;
  const SetupScope scope(*context_);
  const Driver& driver = context_->driver();
  try {
    driver.check(driver.event_create(&forked_, kCuEventDisableTiming), "cuEventCreate");
    for (int index = 0; index < count; ++index) {
      Lane& lane = lanes_[static_cast<std::size_t>(index)];
      driver.check(driver.stream_create(&lane.stream, kCuStreamNonBlocking), "cuStreamCreate");
      driver.check(driver.event_create(&lane.done, kCuEventDisableTiming), "cuEventCreate");
    }
  } catch (...) {
    destroy();
    throw;
  }
}

Branches::~Branches() {
  if (const TeardownScope scope(*context_); scope) destroy();
}

void Branches::destroy() noexcept {
  const Driver& driver = context_->driver();
  for (Lane& lane : lanes_) {
    if (lane.done != nullptr) driver.event_destroy(lane.done);
    if (lane.stream != nullptr) driver.stream_destroy(lane.stream);
  }
  if (forked_ != nullptr) driver.event_destroy(forked_);
}

void Branches::fork(CuStream stream, int count) {
  const Driver& driver = context_->driver();
  driver.check(driver.event_record(forked_, stream), "cuEventRecord");
  for (int index = 0; index < count; ++index) {
    driver.check(driver.stream_wait_event(branch(index), forked_, 0), "cuStreamWaitEvent");
  }
}

void Branches::join(CuStream stream, int count) {
  const Driver& driver = context_->driver();
  for (int index = 0; index < count; ++index) {
    const Lane& lane = lanes_[static_cast<std::size_t>(index)];
    driver.check(driver.event_record(lane.done, lane.stream), "cuEventRecord");
    driver.check(driver.stream_wait_event(stream, lane.done, 0), "cuStreamWaitEvent");
  }
}

}  // namespace plait::cuda
