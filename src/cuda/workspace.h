// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cuda/device.h"
#include "plan/backend.h"
#include "plan/ledger.h"

namespace plait::cuda {

/// Where everything lies in an Attention's device workspace: the entries of one ledger, for sizing
/// and for carving alike. Every address stays the same from plan to plan.
struct WorkspaceLayout {
  /// `measured`: with room for the times of the workers.
  WorkspaceLayout(std::span<const AttentionSpec> groups, std::span<const PlanTarget> targets,
                  const PlanBounds& bounds, bool canonical, bool measured);

  /// Device address of an entry of the workspace that begins at `base`.
  CuDevicePtr address(CuDevicePtr base, Ledger::Handle entry) const noexcept {
    return base + static_cast<CuDevicePtr>(ledger.entry(entry).offset);
  }
  template <typename T>
  T* carve(CuDevicePtr base, Ledger::Handle entry) const noexcept {
    return reinterpret_cast<T*>(address(base, entry));
  }

  /// From the first counter to the plan.
  std::int64_t counters_bytes() const noexcept {
    return ledger.entry(plan).offset - ledger.entry(counters).offset;
  }

  Ledger ledger;
  Ledger::Handle counters;      // u32[bounds.counters]
  Ledger::Handle plan;          // i32[bounds.plan_words]; right after, so that one copy writes both
  Ledger::Handle state_o;       // f32[bounds.state_rows, widest head_dim_vo]
  Ledger::Handle state_lse;     // f32[bounds.state_rows]
  Ledger::Handle fold_o;        // f32[workers, canonical q_tile, padded head_dim_vo], if canonical
  Ledger::Handle status;        // StatusBlock
  Ledger::Handle worker_times;  // u64[classes, workers, 2], if measured
};

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
