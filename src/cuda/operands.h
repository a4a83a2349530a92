// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// From the operands of a run to what a kernel reads.
#pragma once

#include <cstdint>

#include "cuda/device.h"
#include "cuda/kernels/common/params.h"
#include "plait/attention.h"

namespace plait::cuda {

/// Refuses an address that this device's kernels cannot use: host memory, another device's memory,
/// or one that is no multiple of `alignment` bytes. Throws Error{kInvalidArgument} naming `field`.
void check_device_address(const DeviceContext& context, const char* field, const void* address,
                          std::int64_t alignment);

/// The alignment that rows of `row_bytes` are read with: the largest power of two that divides it,
/// at most 16.
std::int64_t row_alignment(std::int64_t row_bytes) noexcept;

/// Addresses and strides of every operand of `args`, checked. `layout` fields that belong to the
/// plan and the workspace are left alone.
void fill_operands(const DeviceContext& context, const AttentionSpec& spec, const RunArgs& args,
                   device::AttentionParams* params);

/// What a spec alone determines.
void fill_spec(const AttentionSpec& spec, device::AttentionParams* params);

}  // namespace plait::cuda
