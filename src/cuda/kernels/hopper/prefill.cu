// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/common/launch_info.h"
#include "cuda/kernels/hopper/config.h"
#include "cuda/kernels/hopper/prefill.h"

namespace plait::device::hopper {

struct Config : KernelConfig {
  static constexpr i32 kTileN = kKvTile;
  static constexpr i32 kQStages = 2;
  static constexpr i32 kBox = box_tokens(kPaged, kPageSize, kTileN);
  static_assert(kHeadDimQk == kHeadDim && kHeadDimVo == kHeadDim && kQTile == kPrefillRows);
  static_assert(kWarpgroupRows % kGroupSize == 0, "a box of queries holds whole groups");
  static_assert(kTileN / kBox <= 32, "one box per lane");
};

}  // namespace plait::device::hopper

PLAIT_LAUNCH_INFO(plait::device::hopper::kPrefillThreads,
                  plait::device::hopper::kPrefillSharedBytes<plait::device::hopper::Config>, 1, 1);

extern "C" __global__ void __launch_bounds__(plait::device::hopper::kPrefillThreads, 1)
    PLAIT_KERNEL_NAME(const __grid_constant__ plait::device::hopper::HopperParams p) {
  plait::device::hopper::prefill_entry<plait::device::hopper::Config>(p);
}
