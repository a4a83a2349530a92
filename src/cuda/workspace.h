// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cuda/device.h"
#include "plan/backend.h"

namespace plait::cuda {

/// Where everything lies in an Attention's device workspace, byte offsets from its start. One
/// function computes it, for sizing and for carving alike. Every address stays the same from plan
/// to plan.
struct WorkspaceLayout {
  std::int64_t plan = 0;       // i32[bounds.plan_words]
  std::int64_t counters = 0;   // u32[bounds.counters]
  std::int64_t state_o = 0;    // f32[bounds.state_rows, widest head_dim_vo]
  std::int64_t state_lse = 0;  // f32[bounds.state_rows]
  std::int64_t fold_o = 0;     // f32[workers, canonical q_tile, padded head_dim_vo], if canonical
  std::int64_t status = 0;     // StatusBlock
  std::int64_t worker_times = 0;  // u64[classes, workers, 2], if measured
  std::int64_t bytes = 0;
};

WorkspaceLayout workspace_layout(std::span<const AttentionSpec> groups,
                                 std::span<const PlanTarget> targets, const PlanBounds& bounds,
                                 bool canonical, bool measured);

/// Device memory from the caller's allocator, or from the driver.
class Workspace {
 public:
  /// Throws Error{kOutOfMemory} naming the bytes, Error{kInvalidArgument} if an allocator returns
  /// memory that is not aligned to 256 bytes.
  Workspace(const std::shared_ptr<DeviceContext>& context, std::int64_t bytes,
            const Allocator& allocator);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  CuDevicePtr address() const noexcept { return address_; }
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  DeviceBuffer own_;
  Allocator allocator_;
  Device device_;
  CuDevicePtr address_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace plait::cuda
