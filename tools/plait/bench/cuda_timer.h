// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/device.h"
#include "plait/bench/stats.h"

namespace plait::bench {

/// A stream with two events and a buffer larger than any L2: times one call on the device.
class CudaTimer {
 public:
  explicit CudaTimer(std::shared_ptr<cuda::DeviceContext> context);
  ~CudaTimer();
  CudaTimer(const CudaTimer&) = delete;
  CudaTimer& operator=(const CudaTimer&) = delete;

  const std::shared_ptr<cuda::DeviceContext>& context() const noexcept { return context_; }
  cuda::CuStream stream() const noexcept { return stream_; }
  void synchronize() const;
  void copy_to_device(cuda::CuDevicePtr to, const void* from, std::size_t bytes) const;
  void copy_to_host(void* to, cuda::CuDevicePtr from, std::size_t bytes) const;

  /// Seconds between events around what `work` enqueues on `stream`, after an L2 flush. The host is
  /// kept ahead of the device, so that launches are not what is measured.
  template <class Work>
  double seconds_of(const Work& work) {
    begin();
    work();
    return end();
  }

 private:
  void begin();
  double end();

  std::shared_ptr<cuda::DeviceContext> context_;
  cuda::DeviceBuffer flush_;
  cuda::CuStream stream_ = nullptr;
  cuda::CuEvent begin_ = nullptr;
  cuda::CuEvent end_ = nullptr;
};

/// Runs the case and its bound in turn, `repetitions` times and twice more to warm up.
template <class Bound, class Case>
void measure_in_turn(CudaTimer& timer, int repetitions, const Bound& bound, const Case& work,
                     Sample& bound_sample, Sample& case_sample) {
  for (int round = -2; round < repetitions; ++round) {
    const double b = timer.seconds_of(bound);
    const double c = timer.seconds_of(work);
    if (round < 0) continue;
    bound_sample.seconds.push_back(b);
    case_sample.seconds.push_back(c);
  }
}

}  // namespace plait::bench
