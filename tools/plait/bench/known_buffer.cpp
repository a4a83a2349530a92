// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#if PLAIT_WITH_CUDA
#include "plait/bench/known_buffer.h"

#include <algorithm>
#include <random>
#include <vector>

#include "core/convert.h"

namespace plait::bench {
namespace {

// A prime, so that neighbouring pages, and K and V, of power-of-two pools differ.
constexpr std::int64_t kPeriod = 4194301;
constexpr std::int64_t kStreamShift = 1000003;
constexpr std::uint64_t kSeed = 1;

const std::vector<std::uint16_t>& period() {
  static const std::vector<std::uint16_t> words = [] {
    std::mt19937_64 random(kSeed);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> drawn(kPeriod);
    for (std::uint16_t& word : drawn) word = f32_to_bf16(normal(random));
    return drawn;
  }();
  return words;
}

}  // namespace

KnownBuffer::KnownBuffer(const CudaTimer& timer, std::int64_t elements, int stream,
                         const char* what)
    : buffer_(timer.context(), elements * kElement, what), shift_(stream * kStreamShift % kPeriod) {
  std::vector<std::uint16_t> words = period();
  std::rotate(words.begin(), words.begin() + shift_, words.end());
  const std::int64_t first = std::min(elements, kPeriod) * kElement;
  timer.copy_to_device(address(), words.data(), static_cast<std::size_t>(first));
  const cuda::Driver& driver = timer.context()->driver();
  const cuda::ContextScope scope(*timer.context());
  for (std::int64_t done = first; done < bytes(); done *= 2) {
    const std::int64_t more = std::min(done, bytes() - done);
    driver.check(
        driver.memcpy_device_to_device(address() + static_cast<cuda::CuDevicePtr>(done), address(),
                                       static_cast<std::size_t>(more), timer.stream()),
        "cuMemcpyDtoDAsync");
  }
  timer.synchronize();
}

double KnownBuffer::value(std::int64_t element) const {
  return static_cast<double>(
      bf16_to_f32(period()[static_cast<std::size_t>((element + shift_) % kPeriod)]));
}

}  // namespace plait::bench
#endif  // PLAIT_WITH_CUDA
