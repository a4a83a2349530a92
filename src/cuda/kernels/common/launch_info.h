// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// How a kernel tells the host what it needs to be launched. Each entry source says, once,
//
//   PLAIT_LAUNCH_INFO(threads, dynamic_shared_bytes, min_blocks_per_sm, cluster_size);
//
// with compile-time constants (usually from its shared-memory plan struct). The JIT reads the
// numbers from the compiled cubin, without a GPU, so that they are stated in the kernel alone.
#pragma once

#include "core/device/portable.h"

namespace plait::device {

inline constexpr u32 kLaunchInfoMagic = 0x4F464E49;

struct LaunchInfo {
  u32 magic;
  u32 threads;
  u32 dynamic_shared_bytes;
  u32 min_blocks_per_sm;
  u32 cluster_size;
  u32 reserved[3];
};

}  // namespace plait::device

#define PLAIT_LAUNCH_INFO(threads, dynamic_shared_bytes, min_blocks_per_sm, cluster_size) \
  extern "C" __device__ const ::plait::device::LaunchInfo plait_launch_info = {           \
      ::plait::device::kLaunchInfoMagic,                                                  \
      (threads),                                                                          \
      (dynamic_shared_bytes),                                                             \
      (min_blocks_per_sm),                                                                \
      (cluster_size),                                                                     \
      {0, 0, 0}}
