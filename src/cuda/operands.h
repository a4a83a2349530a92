// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// From the operands of a run to what a kernel reads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cuda/device.h"
#include "cuda/kernels/common/params.h"
#include "plait/attention.h"

namespace plait::cuda {

/// Refuses an address that this device's kernels cannot use: host memory, another device's memory,
/// or one that is no multiple of `alignment` bytes. Throws Error{kInvalidArgument} naming `field`.
void check_device_address(const DeviceContext& context, const char* field, const void* address,
                          std::int64_t alignment);

/// Addresses that were found to be on a device. Asking the driver costs more than everything else
/// that `run` does before its launches, and a layer's operands come back at every step.
class KnownAddresses {
 public:
  bool contains(const void* address) const noexcept { return slot(address) == address; }
  void add(const void* address) noexcept { addresses_[index(address)] = address; }

 private:
  static constexpr std::size_t kSlots = 1024;  // power of two
  static std::size_t index(const void* address) noexcept {
    // Allocations are aligned to 256 bytes and more: the high bits of the product mix best.
    return static_cast<std::size_t>(
        reinterpret_cast<std::uintptr_t>(address) * 0x9E3779B97F4A7C15ULL >> 54);
  }
  const void* slot(const void* address) const noexcept { return addresses_[index(address)]; }

  std::array<const void*, kSlots> addresses_{};
};

/// The alignment that rows of `row_bytes` are read with: the largest power of two that divides it,
/// at most 16.
std::int64_t row_alignment(std::int64_t row_bytes) noexcept;

/// Addresses and strides of every operand of `args`, checked. Fields that belong to the plan and
/// the workspace are left alone. `alignment`: what the kernels ask of rows at most, in bytes.
/// `known` spares questions to the driver.
void fill_operands(const DeviceContext& context, const AttentionSpec& spec, const RunArgs& args,
                   std::int64_t alignment, KnownAddresses& known, device::AttentionParams* params);

/// Rounds what `params` says of the lengths of page lists down to powers of two. Kernels ask the L2
/// for as many ids as they start and use it for nothing else; the lists of batches that grow or
/// shrink from step to step then say the same most of the time.
void round_page_ids(device::AttentionParams* params) noexcept;

/// What a spec alone determines.
void fill_spec(const AttentionSpec& spec, device::AttentionParams* params);

}  // namespace plait::cuda
