// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/common/launch_info.h"
#include "cuda/kernels/hopper/config.h"
#include "cuda/kernels/hopper/prefill.h"

namespace plait::device::hopper {

struct Config : KernelConfig {
  static constexpr DTypeCode kElement = kQDtype;
  static constexpr i32 kHeadDim = kHeadDimQk;
  static constexpr i32 kParts = kHeadDim / kPartDims;
  static constexpr i32 kTileN = kKvTile;
  static constexpr i32 kQStages = prefill_query_stages(kHeadDim);
  static constexpr bool kGather = kPaged && kPageSize == 0;
  static constexpr i32 kBox = box_tokens(kPaged && !kGather, kPageSize, kTileN);
  static_assert(kHeadDim % kPartDims == 0 && kHeadDimVo == kHeadDim && kQTile == kPrefillRows);
  static_assert(kKvDtype == kElement && kODtype == kElement);
  static_assert(kWarpgroupRows % kGroupSize == 0, "a box of queries holds whole groups");
};

}  // namespace plait::device::hopper

PLAIT_LAUNCH_INFO(plait::device::hopper::kPrefillThreads,
                  plait::device::hopper::kPrefillSharedBytes<plait::device::hopper::Config>, 1, 1);

extern "C" __global__ void __launch_bounds__(plait::device::hopper::kPrefillThreads, 1)
    PLAIT_KERNEL_NAME(const __grid_constant__ plait::device::hopper::HopperParams p) {
  plait::device::hopper::prefill_entry<plait::device::hopper::Config>(p);
}
