// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Where the operands of a replay live: host memory for the CPU, device memory for a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "plait/tensor.h"

namespace plait::serve {

/// Memory and time of one device. Work goes to its default stream, as the engine's does.
class Memory {
 public:
  /// Throws Error{kBackend} if the device is not there or this build does not know its kind.
  static std::unique_ptr<Memory> make(Device device);
  virtual ~Memory() = default;

  virtual Device device() const = 0;
  /// Zeroed memory. Throws Error{kOutOfMemory} naming `what`.
  virtual std::shared_ptr<std::byte> allocate(std::int64_t bytes, const char* what) = 0;
  /// Host memory that copies to and from the device are fastest with.
  virtual std::shared_ptr<std::byte> allocate_staging(std::int64_t bytes, const char* what) = 0;
  virtual void copy_in(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  virtual void copy_out(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  virtual void copy_within(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  virtual void fill(std::byte* to, unsigned char value, std::int64_t bytes) = 0;

  /// Time between the two on the device, with everything before done first.
  virtual void start_timer() = 0;
  virtual double stop_timer_us() = 0;

  bool is_host() const { return device().kind == DeviceKind::kCpu; }
};

/// Memory that the host fills or reads and the device uses; on the CPU both are the same bytes.
class Mirror {
 public:
  Mirror() = default;
  Mirror(Memory& memory, std::int64_t bytes, const char* what);

  std::byte* host() noexcept { return memory_->is_host() ? device_.get() : staging_.get(); }
  std::byte* device() const noexcept { return device_.get(); }
  std::int64_t bytes() const noexcept { return bytes_; }
  void push(std::int64_t bytes);  // host -> device
  void pull(std::int64_t bytes);  // device -> host

 private:
  Memory* memory_ = nullptr;
  std::int64_t bytes_ = 0;
  std::shared_ptr<std::byte> device_;
  std::shared_ptr<std::byte> staging_;  // null where the device is the host
};

/// A list of indices that is made on the host every step and read by the device.
class IndexList {
 public:
  /// `values` must outlive the tensor where the device is the host.
  Tensor place(Memory& memory, std::span<const std::int32_t> values);

 private:
  std::shared_ptr<std::byte> device_;
  std::int64_t bytes_ = 0;
};

}  // namespace plait::serve
