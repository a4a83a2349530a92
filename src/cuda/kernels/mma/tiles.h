// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Which tile shapes the family uses for a spec: host code, pure arithmetic over layout.h.
#pragma once

#include <optional>

#include "cuda/device.h"
#include "cuda/kernels/mma/layout.h"
#include "plait/spec.h"
#include "plan/planner.h"

namespace plait::cuda::mma {

/// The products' type: see Config::kCompute, which this mirrors and a test compares.
DType compute_dtype(const AttentionSpec& spec) noexcept;

/// The shape for query tiles of `q_tile` fused rows: the deepest pipeline and widest KV tile that
/// let `blocks` CTAs live on a multiprocessor. Nothing if registers or shared memory do not allow
/// it.
std::optional<device::mma::TileShape> choose_shape(const AttentionSpec& spec, int q_tile,
                                                   const DeviceFacts& facts, int blocks);

/// Query tiles of up to 16, 64 and 128 fused rows as far as they are possible, and the canonical
/// class. `num_workers` is 0 if nothing fits.
PlanTarget choose_target(const AttentionSpec& spec, bool canonical, const DeviceFacts& facts);

/// CTAs per multiprocessor that all classes of a target can have.
int common_blocks(const AttentionSpec& spec, bool canonical, const DeviceFacts& facts);

}  // namespace plait::cuda::mma
