// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/memory_cuda.h"

#include "plait/error.h"

#if PLAIT_WITH_CUDA

#include <algorithm>
#include <string>

#include "cuda/device.h"

namespace plait::serve {
namespace {

cuda::CuDevicePtr address_of(const void* pointer) {
  return static_cast<cuda::CuDevicePtr>(reinterpret_cast<std::uintptr_t>(pointer));
}

class CudaMemory final : public Memory {
 public:
  explicit CudaMemory(Device device)
      : device_(device), context_(cuda::DeviceContext::get(device.index)) {
    const cuda::ContextScope scope(*context_);
    driver().check(driver().event_create(&begin_, 0), "creating an event");
    driver().check(driver().event_create(&end_, 0), "creating an event");
  }
  ~CudaMemory() override {
    const cuda::ContextScope scope(*context_);
    driver().event_destroy(begin_);
    driver().event_destroy(end_);
  }

  Device device() const override { return device_; }

  std::shared_ptr<std::byte> allocate(std::int64_t bytes, const char* what) override {
    auto buffer = std::make_shared<cuda::DeviceBuffer>(context_, bytes > 0 ? bytes : 1, what);
    auto* memory = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(buffer->address()));
    fill(memory, 0, bytes);
    return {buffer, memory};
  }
  std::shared_ptr<std::byte> allocate_staging(std::int64_t bytes, const char* what) override {
    const cuda::ContextScope scope(*context_);
    void* memory = nullptr;
    const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
    if (driver().mem_host_alloc(&memory, size, 0) != cuda::kCuSuccess) {
      throw Error(ErrorCode::kOutOfMemory, what, std::to_string(bytes) + " bytes",
                  "pinned host memory that the driver can give (a smaller --token-budget)");
    }
    auto context = context_;
    return {static_cast<std::byte*>(memory), [context](std::byte* pinned) {
              const cuda::ContextScope inner(*context);
              context->driver().mem_host_free(pinned);
            }};
  }
  void copy_in(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    const cuda::ContextScope scope(*context_);
    driver().check(driver().memcpy_host_to_device(address_of(to), from,
                                                  static_cast<std::size_t>(bytes), nullptr),
                   "copying to the device");
    // The host buffer is filled again as soon as this returns.
    driver().check(driver().context_synchronize(), "copying to the device");
  }
  void copy_out(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    const cuda::ContextScope scope(*context_);
    driver().check(driver().memcpy_device_to_host(to, address_of(from),
                                                  static_cast<std::size_t>(bytes), nullptr),
                   "copying to the host");
    driver().check(driver().context_synchronize(), "copying to the host");
  }
  void copy_within(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    const cuda::ContextScope scope(*context_);
    driver().check(driver().memcpy_device_to_device(address_of(to), address_of(from),
                                                    static_cast<std::size_t>(bytes), nullptr),
                   "copying on the device");
  }
  void fill(std::byte* to, unsigned char value, std::int64_t bytes) override {
    if (bytes == 0) return;
    const cuda::ContextScope scope(*context_);
    driver().check(
        driver().memset_d8(address_of(to), value, static_cast<std::size_t>(bytes), nullptr),
        "filling device memory");
  }
  void start_timer() override {
    const cuda::ContextScope scope(*context_);
    driver().check(driver().context_synchronize(), "waiting for the device");
    driver().check(driver().event_record(begin_, nullptr), "recording an event");
  }
  double stop_timer_us() override {
    const cuda::ContextScope scope(*context_);
    float milliseconds = 0.0F;
    driver().check(driver().event_record(end_, nullptr), "recording an event");
    driver().check(driver().event_synchronize(end_), "running a step");
    driver().check(driver().event_elapsed_time(&milliseconds, begin_, end_), "reading an event");
    return 1e3 * milliseconds;
  }

 private:
  const cuda::Driver& driver() const { return context_->driver(); }

  Device device_;
  std::shared_ptr<cuda::DeviceContext> context_;
  cuda::CuEvent begin_ = nullptr;
  cuda::CuEvent end_ = nullptr;
};

}  // namespace

std::unique_ptr<Memory> make_cuda_memory(Device device) {
  return std::make_unique<CudaMemory>(device);
}

}  // namespace plait::serve

#else

namespace plait::serve {

std::unique_ptr<Memory> make_cuda_memory(Device) {
  throw Error(ErrorCode::kBackend, "device", "cuda", "cpu (this build has no CUDA backend)");
}

}  // namespace plait::serve

#endif
