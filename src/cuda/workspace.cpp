// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/workspace.h"

#include <algorithm>
#include <string>

#include "cuda/kernels/common/params.h"
#include "plait/error.h"

namespace plait::cuda {

namespace {
constexpr std::int64_t kAlignment = 256;  // what cuMemAlloc gives, and more than any load needs
}  // namespace

WorkspaceLayout workspace_layout(std::span<const AttentionSpec> groups,
                                 std::span<const PlanTarget> targets, const PlanBounds& bounds,
                                 bool canonical, bool measured) {
  WorkspaceLayout layout;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t offset = layout.bytes;
    layout.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  };
  std::int64_t widest = 0;
  for (const AttentionSpec& spec : groups) {
    widest = std::max<std::int64_t>(widest, spec.head_dim_vo);
  }
  std::int64_t workers = 0;
  for (const PlanTarget& target : targets) {
    workers = std::max<std::int64_t>(workers, target.num_workers);
  }
  layout.plan = take(bounds.plan_words * 4);
  layout.counters = take(bounds.counters * 4);
  layout.state_o = take(bounds.state_rows * widest * 4);
  layout.state_lse = take(bounds.state_rows * 4);
  std::int64_t fold = 0;
  for (std::size_t i = 0; canonical && i < groups.size(); ++i) {
    // Families pad values to whole tiles; no tile is wider than 64.
    const std::int64_t columns = (groups[i].head_dim_vo + 63) / 64 * 64;
    fold = std::max(fold, targets[i].num_workers * columns * targets[i].canonical.q_tile);
  }
  layout.fold_o = take(fold * 4);
  layout.status = take(sizeof(device::StatusBlock));
  layout.worker_times = take(measured ? device::kMaxClasses * workers * 16 : 0);
  return layout;
}

Workspace::Workspace(const std::shared_ptr<DeviceContext>& context, std::int64_t bytes,
                     const Allocator& allocator)
    : allocator_(allocator), device_{DeviceKind::kCuda, context->facts().ordinal}, bytes_(bytes) {
  if (!allocator_.allocate) {
    own_ = DeviceBuffer(context, bytes, "workspace");
    address_ = own_.address();
    return;
  }
  void* memory = allocator_.allocate(bytes, device_);
  if (memory == nullptr) {
    throw Error(ErrorCode::kOutOfMemory, "workspace",
                "nothing from the allocator for " + std::to_string(bytes) + " bytes",
                "that much memory on device " + std::to_string(device_.index));
  }
  address_ = reinterpret_cast<CuDevicePtr>(memory);
  if (address_ % kAlignment != 0) {
    if (allocator_.deallocate) allocator_.deallocate(memory, device_);
    throw Error(ErrorCode::kInvalidArgument, "allocator",
                "memory at an address that is no multiple of " + std::to_string(kAlignment),
                "aligned memory");
  }
}

Workspace::~Workspace() {
  if (allocator_.allocate && allocator_.deallocate && address_ != 0) {
    allocator_.deallocate(reinterpret_cast<void*>(address_), device_);
  }
}

}  // namespace plait::cuda
