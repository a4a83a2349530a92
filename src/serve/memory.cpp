// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "plait/error.h"
#include "serve/memory_cuda.h"
#include "serve/stopwatch.h"

namespace plait::serve {
namespace {

class HostMemory final : public Memory {
 public:
  Device device() const override { return {}; }

  std::shared_ptr<std::byte> allocate(std::int64_t bytes, const char* what) override {
    auto* memory = static_cast<std::byte*>(
        std::calloc(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), 1));
    if (memory == nullptr) {
      throw Error(ErrorCode::kOutOfMemory, what, std::to_string(bytes) + " bytes",
                  "an allocation that the host can serve (a smaller --pool-tokens)");
    }
    return {memory, [](std::byte* m) { std::free(m); }};
  }
  std::shared_ptr<std::byte> allocate_staging(std::int64_t bytes, const char* what) override {
    return allocate(bytes, what);
  }
  void copy_in(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void copy_out(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void copy_within(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void fill(std::byte* to, unsigned char value, std::int64_t bytes) override {
    std::memset(to, value, static_cast<std::size_t>(bytes));
  }
  void start_timer() override { watch_ = Stopwatch(); }
  double stop_timer_us() override { return watch_.microseconds(); }

 private:
  Stopwatch watch_;
};

}  // namespace

std::unique_ptr<Memory> Memory::make(Device device) {
  if (device.kind == DeviceKind::kCpu) return std::make_unique<HostMemory>();
  return make_cuda_memory(device);
}

Mirror::Mirror(Memory& memory, std::int64_t bytes, const char* what)
    : memory_(&memory), bytes_(bytes), device_(memory.allocate(bytes, what)) {
  if (!memory.is_host()) staging_ = memory.allocate_staging(bytes, what);
}

void Mirror::push(std::int64_t bytes) {
  if (!memory_->is_host()) memory_->copy_in(device_.get(), staging_.get(), bytes);
}

void Mirror::pull(std::int64_t bytes) {
  if (!memory_->is_host()) memory_->copy_out(staging_.get(), device_.get(), bytes);
}

Tensor IndexList::place(Memory& memory, std::span<const std::int32_t> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  if (memory.is_host()) return Tensor::contiguous(values.data(), DType::kI32, {count});
  const std::int64_t bytes = 4 * count;
  if (bytes > bytes_ || device_ == nullptr) {
    bytes_ = std::max<std::int64_t>(bytes + bytes / 2, 1024);
    device_ = memory.allocate(bytes_, "indices");
  }
  if (bytes > 0) {
    memory.copy_in(device_.get(), reinterpret_cast<const std::byte*>(values.data()), bytes);
  }
  return Tensor::contiguous(device_.get(), DType::kI32, {count}, memory.device());
}

}  // namespace plait::serve
