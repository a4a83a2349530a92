// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Programmatic dependent launch: a grid may start while the one before it in its stream still runs.
// Nothing happens before sm_90, nor in grids that were launched otherwise.
#pragma once

#include "core/device/portable.h"

namespace plait::device {

/// From now on the next grid of the stream may start, where multiprocessors have room for it.
__device__ __forceinline__ void allow_next_grid() {
#if PLAIT_ARCH >= 90
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the grid before this one has ended and its writes are visible. Every grid that may
/// have been started early does so, at its end at the latest: its own end then says that all before
/// it have ended too.
__device__ __forceinline__ void wait_for_previous_grid() {
#if PLAIT_ARCH >= 90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace plait::device
