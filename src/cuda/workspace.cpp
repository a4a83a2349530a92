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

WorkspaceLayout::WorkspaceLayout(std::span<const AttentionSpec> groups,
                                 std::span<const PlanTarget> targets, const PlanBounds& bounds,
                                 bool canonical, bool measured) {
  std::int64_t widest = 0;
  std::int64_t fold = 0;
  std::int64_t workers = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::int64_t dim = groups[i].head_dim_vo;
    widest = std::max(widest, dim);
    workers = std::max<std::int64_t>(workers, targets[i].num_workers);
    // Families pad values to whole tiles; no tile is wider than 64.
    const std::int64_t columns = (dim + 63) / 64 * 64;
    fold = std::max(fold, targets[i].num_workers * columns * targets[i].canonical.q_tile);
  }
  const auto add = [&](const char* name, std::int64_t count, std::size_t element_bytes) {
    return ledger.add(name, count, static_cast<std::int64_t>(element_bytes), kAlignment);
  };
  counters = add("counters", bounds.counters, sizeof(device::u32));
  plan = add("plan", bounds.plan_words, sizeof(std::int32_t));
  state_o = add("partial_o", CheckedSize::multiply("partial_o", bounds.state_rows, widest),
                sizeof(float));
  state_lse = add("partial_lse", bounds.state_rows, sizeof(float));
  fold_o = add("folded_o", canonical ? fold : 0, sizeof(float));
  status = add("status", 1, sizeof(device::StatusBlock));
  worker_times =
      add("worker_times", measured ? 2 * device::kMaxClasses * workers : 0, sizeof(device::u64));
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
