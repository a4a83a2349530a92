// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/device.h"

#include <map>
#include <mutex>
#include <utility>

#include "cuda/setup_scope.h"
#include "plait/error.h"

namespace plait::cuda {

DeviceFacts query_device(const Driver& driver, int ordinal) {
  if (ordinal < 0 || ordinal >= driver.device_count()) {
    throw Error(ErrorCode::kInvalidArgument, "device.index", std::to_string(ordinal),
                "0.." + std::to_string(driver.device_count() - 1));
  }
  CuDevice device = 0;
  driver.check(driver.device_get(&device, ordinal), "cuDeviceGet");
  const auto attribute = [&](CuDeviceAttribute which) {
    int value = 0;
    driver.check(driver.device_get_attribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  };
  DeviceFacts facts;
  facts.ordinal = ordinal;
  char name[256] = {};
  driver.check(driver.device_get_name(name, sizeof(name) - 1, device), "cuDeviceGetName");
  facts.name = name;
  std::size_t memory = 0;
  driver.check(driver.device_total_mem(&memory, device), "cuDeviceTotalMem");
  facts.memory_bytes = static_cast<std::int64_t>(memory);
  facts.compute_capability = 10 * attribute(CuDeviceAttribute::kComputeCapabilityMajor) +
                             attribute(CuDeviceAttribute::kComputeCapabilityMinor);
  facts.sm_count = attribute(CuDeviceAttribute::kMultiprocessorCount);
  facts.l2_bytes = attribute(CuDeviceAttribute::kL2CacheSize);
  facts.shared_bytes_per_sm = attribute(CuDeviceAttribute::kMaxSharedMemoryPerMultiprocessor);
  facts.shared_bytes_per_block = attribute(CuDeviceAttribute::kMaxSharedMemoryPerBlockOptin);
  facts.reserved_shared_bytes = attribute(CuDeviceAttribute::kReservedSharedMemoryPerBlock);
  facts.registers_per_sm = attribute(CuDeviceAttribute::kMaxRegistersPerMultiprocessor);
  facts.threads_per_sm = attribute(CuDeviceAttribute::kMaxThreadsPerMultiprocessor);
  facts.clock_khz = attribute(CuDeviceAttribute::kClockRateKhz);
  facts.memory_clock_khz = attribute(CuDeviceAttribute::kMemoryClockRateKhz);
  facts.memory_bus_bits = attribute(CuDeviceAttribute::kMemoryBusWidthBits);
  return facts;
}

std::shared_ptr<DeviceContext> DeviceContext::get(int ordinal) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<DeviceContext>> contexts;
  const std::lock_guard lock(mutex);
  std::weak_ptr<DeviceContext>& slot = contexts[ordinal];
  std::shared_ptr<DeviceContext> context = slot.lock();
  if (context == nullptr) {
    context.reset(new DeviceContext(Driver::get(), ordinal));
    slot = context;
  }
  return context;
}

DeviceContext::DeviceContext(const Driver& driver, int ordinal)
    : driver_(driver), facts_(query_device(driver, ordinal)) {
  driver_.check(driver_.device_get(&device_, ordinal), "cuDeviceGet");
  driver_.check(driver_.primary_context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

// Destructors ignore results: at process exit the driver may be gone already, and there is nobody
// left to tell.
DeviceContext::~DeviceContext() { driver_.primary_context_release(device_); }

ContextScope::ContextScope(const DeviceContext& context) : driver_(context.driver()) {
  CuContext current = nullptr;
  driver_.check(driver_.context_get_current(&current), "cuCtxGetCurrent");
  if (current == context.handle()) return;
  driver_.check(driver_.context_push(context.handle()), "cuCtxPushCurrent");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  if (!pushed_) return;
  CuContext popped = nullptr;
  driver_.context_pop(&popped);
}

DeviceBuffer::DeviceBuffer(std::shared_ptr<DeviceContext> context, std::int64_t bytes,
                           const char* what)
    : context_(std::move(context)), bytes_(bytes) {
  const SetupScope scope(*context_);
  const Driver& driver = context_->driver();
  const CuResult result = driver.mem_alloc(&address_, static_cast<std::size_t>(bytes));
  if (result == kCuErrorOutOfMemory) {
    throw Error(
        ErrorCode::kOutOfMemory, what,
        std::to_string(bytes) + " bytes on device " + std::to_string(context_->facts().ordinal),
        "that much free device memory");
  }
  driver.check(result, "cuMemAlloc");
}

DeviceBuffer::~DeviceBuffer() {
  if (address_ == 0) return;
  if (const TeardownScope scope(*context_); scope) context_->driver().mem_free(address_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : context_(std::move(other.context_)),
      address_(std::exchange(other.address_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace plait::cuda
