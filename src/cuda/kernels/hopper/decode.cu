// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/common/launch_info.h"
#include "cuda/kernels/hopper/config.h"
#include "cuda/kernels/hopper/decode.h"

namespace plait::device::hopper {

struct Config : KernelConfig {
  static constexpr DTypeCode kElement = kQDtype;
  static constexpr i32 kHeadDim = kHeadDimQk;
  static constexpr i32 kParts = kHeadDim / kPartDims;
  static constexpr i32 kSlots = kStages;
  static constexpr bool kGather = kPaged && kPageSize == 0;
  static_assert(kHeadDim % kPartDims == 0 && kHeadDimVo == kHeadDim && kQTile == kDecodeRows);
  static_assert(kKvDtype == kElement && kODtype == kElement);
  static_assert(!kPaged || kGather || kPageSize % kBlockTokens == 0);
};

}  // namespace plait::device::hopper

PLAIT_LAUNCH_INFO(plait::device::hopper::Config::kWarps * 32,
                  plait::device::hopper::kDecodeSharedBytes<plait::device::hopper::Config>, 1, 1);

extern "C" __global__ void __launch_bounds__(plait::device::hopper::Config::kWarps * 32, 1)
    PLAIT_KERNEL_NAME(const __grid_constant__ plait::device::hopper::HopperParams p) {
  plait::device::hopper::decode_entry<plait::device::hopper::Config>(p);
}
