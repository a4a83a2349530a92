// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#if PLAIT_WITH_CUDA
#include "plait/bench/cuda_timer.h"

#include <utility>

namespace plait::bench {
namespace {

using cuda::ContextScope;
using cuda::Driver;

// Well above the L2 of any device.
constexpr std::int64_t kFlushBytes = std::int64_t{512} << 20;

}  // namespace

CudaTimer::CudaTimer(std::shared_ptr<cuda::DeviceContext> context)
    : context_(std::move(context)), flush_(context_, kFlushBytes, "flush buffer") {
  const ContextScope scope(*context_);
  const Driver& driver = context_->driver();
  driver.check(driver.stream_create(&stream_, cuda::kCuStreamNonBlocking), "cuStreamCreate");
  driver.check(driver.event_create(&begin_, 0), "cuEventCreate");
  driver.check(driver.event_create(&end_, 0), "cuEventCreate");
}

CudaTimer::~CudaTimer() {
  const Driver& driver = context_->driver();
  const ContextScope scope(*context_);
  driver.stream_synchronize(stream_);
  driver.event_destroy(begin_);
  driver.event_destroy(end_);
  driver.stream_destroy(stream_);
}

void CudaTimer::synchronize() const {
  context_->driver().check(context_->driver().stream_synchronize(stream_), "cuStreamSynchronize");
}

void CudaTimer::copy_to_device(cuda::CuDevicePtr to, const void* from, std::size_t bytes) const {
  const ContextScope scope(*context_);
  const Driver& driver = context_->driver();
  driver.check(driver.memcpy_host_to_device(to, from, bytes, stream_), "cuMemcpyHtoDAsync");
  synchronize();
}

void CudaTimer::copy_to_host(void* to, cuda::CuDevicePtr from, std::size_t bytes) const {
  const ContextScope scope(*context_);
  const Driver& driver = context_->driver();
  driver.check(driver.memcpy_device_to_host(to, from, bytes, stream_), "cuMemcpyDtoHAsync");
  synchronize();
}

void CudaTimer::begin() {
  const ContextScope scope(*context_);
  const Driver& driver = context_->driver();
  // The flush takes a tenth of a millisecond and more: time enough to enqueue the work behind it.
  driver.check(
      driver.memset_d8(flush_.address(), 1, static_cast<std::size_t>(flush_.bytes()), stream_),
      "cuMemsetD8Async");
  driver.check(driver.event_record(begin_, stream_), "cuEventRecord");
}

double CudaTimer::end() {
  const ContextScope scope(*context_);
  const Driver& driver = context_->driver();
  driver.check(driver.event_record(end_, stream_), "cuEventRecord");
  synchronize();
  float milliseconds = 0;
  driver.check(driver.event_elapsed_time(&milliseconds, begin_, end_), "cuEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace plait::bench
#endif  // PLAIT_WITH_CUDA
