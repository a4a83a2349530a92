// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What the free operations share: one warp per vector, vectors in a grid-stride loop.
#pragma once

#include "cuda/kernels/common/launch_info.h"
#include "cuda/kernels/common/op_params.h"
#include "cuda/kernels/device/element.h"
#include "cuda/kernels/device/math.h"

namespace plait::device::ops {

inline constexpr i32 kThreads = 128;
// Resident per multiprocessor at least. Left open, ptxas aims at 32 registers on sm_90a, and
// spills.
inline constexpr i32 kBlocks = 4;
inline constexpr i32 kWarps = kThreads / 32;

__device__ __forceinline__ i32 lane() { return static_cast<i32>(threadIdx.x) % 32; }

/// Calls body(outer, head) for every vector of [outer extent, heads], a warp each.
template <class Body>
__device__ __forceinline__ void for_each_vector(i64 outer_extent, i32 heads, Body body) {
  const i64 step = static_cast<i64>(gridDim.x) * kWarps;
  const i64 first = static_cast<i64>(blockIdx.x) * kWarps + static_cast<i32>(threadIdx.x) / 32;
  for (i64 vector = first; vector < outer_extent * heads; vector += step) {
    body(vector / heads, static_cast<i32>(vector % heads));
  }
}

template <DTypeCode kCode>
__device__ __forceinline__ const typename Element<kCode>::Word* words(const void* base,
                                                                      i64 offset) {
  return static_cast<const typename Element<kCode>::Word*>(base) + offset;
}
template <DTypeCode kCode>
__device__ __forceinline__ typename Element<kCode>::Word* words(void* base, i64 offset) {
  return static_cast<typename Element<kCode>::Word*>(base) + offset;
}

}  // namespace plait::device::ops

/// The launch facts of every operation.
#define PLAIT_OPERATION_LAUNCH_INFO() \
  PLAIT_LAUNCH_INFO(plait::device::ops::kThreads, 0, plait::device::ops::kBlocks, 1)
