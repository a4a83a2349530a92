// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a kernel family tells the runtime. The runtime does the rest: workspace, upload,
// compilation, launches, graphs. A family's host side lies beside its device code, in
// kernels/<family>/<family>_family.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/device.h"
#include "cuda/jit/kernel_key.h"
#include "cuda/kernels/common/params.h"
#include "cuda/tensor_maps.h"
#include "plait/attention.h"
#include "plan/planner.h"

namespace plait::cuda {

/// Kernel parameters are one struct by value; CUDA bounds it by 4 KiB before driver 12.1.
inline constexpr std::size_t kMaxParameterBytes = 4096;

struct alignas(128) ParameterBuffer {
  std::array<std::byte, kMaxParameterBytes> bytes;  // not initialised

  device::AttentionParams& common() noexcept {
    static_assert(sizeof(device::AttentionParams) <= kMaxParameterBytes);
    return *reinterpret_cast<device::AttentionParams*>(bytes.data());
  }
};

/// Which kernel of a layer group is wanted.
struct KernelRequest {
  const AttentionSpec* spec = nullptr;
  const DeviceFacts* facts = nullptr;
  TileClass tile;          // of the plan: one of PlanTarget::classes, or PlanTarget::canonical
  bool canonical = false;  // the plan reduces in canonical segments
  bool state = false;      // the run wants the mergeable state (f32 output)
  bool measured = false;   // record worker times
};

/// What there is to make a kernel's parameters from, besides the common ones.
struct ParameterRequest {
  const KernelRequest* kernel = nullptr;
  const Driver* driver = nullptr;  // for tensor maps
  TensorMaps* tensor_maps = nullptr;
};

/// Stateless; one object per process.
class FamilyHooks {
 public:
  virtual ~FamilyHooks() = default;

  /// "mma" or "hopper", as in EngineOptions::family.
  virtual std::string_view name() const noexcept = 0;

  /// Why no device of this kind is served at all ("needs compute capability 9.0"); empty if it is.
  virtual std::string decline_device(const DeviceFacts& facts) const = 0;

  /// One sentence if the combination is not served, else empty. The device is one that
  /// decline_device accepts.
  virtual std::string decline(const AttentionSpec& spec, const DeviceFacts& facts) const = 0;

  /// The same for a planning policy.
  virtual std::string decline_policy(const Policy& policy) const {
    (void)policy;
    return {};
  }

  /// Tile classes, workers and costs. `num_workers` is the grid of every launch of the group.
  virtual PlanTarget target(const AttentionSpec& spec, const Policy& policy,
                            const DeviceFacts& facts) const = 0;

  /// The kernel that runs one tile class of a plan. `key.user_variant` and kVariantUser are set by
  /// the runtime.
  virtual KernelKey key(const KernelRequest& request) const = 0;

  /// What the family uses on such a device in the place of `key`, which it uses on another one:
  /// tiles depend on shared memory. Nothing if it has no class of so many rows there.
  virtual std::optional<KernelKey> key_on(const KernelKey& key, const DeviceFacts& facts) const {
    (void)facts;
    return key;
  }

  /// Rows of q, k, v and o must be aligned to the largest power of two that divides them, up to
  /// this many bytes; to their elements in any case.
  virtual int operand_alignment() const noexcept { return 16; }

  /// The text compiled as user_variant.h, for specs with a user variant; empty without one.
  virtual std::string variant_source(const AttentionSpec& spec) const {
    (void)spec;
    return {};
  }

  /// The kernel's only parameter begins with a device::AttentionParams, which is complete: writes
  /// what follows. Called on every run; no allocation, no synchronisation.
  virtual void complete_parameters(const ParameterRequest& request,
                                   ParameterBuffer& parameters) const {
    static_cast<void>(request);
    static_cast<void>(parameters);
  }
};

/// The families of this build, best first.
const std::vector<const FamilyHooks*>& kernel_families();

// Each family defines its own.
std::unique_ptr<FamilyHooks> make_mma_family();
std::unique_ptr<FamilyHooks> make_hopper_family();

}  // namespace plait::cuda
