// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cuda/driver.h"

namespace plait::cuda {

/// What planning and kernel choice need to know of a GPU; plain data.
struct DeviceFacts {
  int ordinal = 0;
  std::string name;
  int compute_capability = 0;  // 10 * major + minor
  int sm_count = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;
  int shared_bytes_per_sm = 0;
  int shared_bytes_per_block = 0;  // at most, after opting in
  int reserved_shared_bytes = 0;   // taken from every block by the driver
  int registers_per_sm = 0;
  int threads_per_sm = 0;
  int clock_khz = 0;
  int memory_clock_khz = 0;
  int memory_bus_bits = 0;
};

/// Throws Error{kInvalidArgument} for an ordinal that is not visible.
DeviceFacts query_device(const Driver& driver, int ordinal);

/// The primary context of one device, which is the one the CUDA runtime and PyTorch use. Retained
/// as long as an object lives. Thread safe.
class DeviceContext {
 public:
  /// The context of `ordinal`, shared by everything in the process that holds it.
  static std::shared_ptr<DeviceContext> get(int ordinal);

  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  const Driver& driver() const noexcept { return driver_; }
  const DeviceFacts& facts() const noexcept { return facts_; }
  CuContext handle() const noexcept { return context_; }
  CuDevice device() const noexcept { return device_; }

 private:
  DeviceContext(const Driver& driver, int ordinal);

  const Driver& driver_;
  DeviceFacts facts_;
  CuDevice device_ = 0;
  CuContext context_ = nullptr;
};

/// Makes a device's context current in this thread until the scope ends, and then the caller's
/// again. Nearly free where it is current already, as it is in most programs.
class ContextScope {
 public:
  explicit ContextScope(const DeviceContext& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

/// Device memory of one context; freed with it. Not stream ordered.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Throws Error{kOutOfMemory} naming `what` and the bytes.
  DeviceBuffer(std::shared_ptr<DeviceContext> context, std::int64_t bytes, const char* what);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  CuDevicePtr address() const noexcept { return address_; }
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<DeviceContext> context_;
  CuDevicePtr address_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace plait::cuda
