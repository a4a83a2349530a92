// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/cuda_backend.h"

#include <string>
#include <utility>

#include "cuda/device.h"
#include "cuda/executor.h"
#include "cuda/family.h"
#include "cuda/jit/kernel_cache.h"
#include "plait/error.h"

namespace plait {
namespace cuda {
namespace {

/// One family on one device, as the engine sees it.
class FamilyBackend final : public Backend {
 public:
  FamilyBackend(const FamilyHooks& family, std::shared_ptr<DeviceContext> context)
      : family_(family), context_(std::move(context)) {}

  std::string_view family() const noexcept override { return family_.name(); }
  DeviceKind device_kind() const noexcept override { return DeviceKind::kCuda; }

  std::string decline(const AttentionSpec& spec, const EngineOptions&) const override {
    std::string reason = family_.decline_device(context_->facts());
    return reason.empty() ? family_.decline(spec, context_->facts()) : reason;
  }

  std::string decline_policy(const Policy& policy) const override {
    return family_.decline_policy(policy);
  }

  PlanTarget target(const AttentionSpec& spec, const Policy& policy,
                    const EngineOptions&) const override {
    PlanTarget target = family_.target(spec, policy, context_->facts());
    if (policy.num_workers > target.num_workers) {
      // More workers than resident blocks would queue behind each other and defeat the balance.
      throw Error(
          ErrorCode::kInvalidArgument, "policy.num_workers", std::to_string(policy.num_workers),
          "at most " + std::to_string(target.num_workers) + " on " + context_->facts().name);
    }
    if (policy.num_workers > 0) target.num_workers = policy.num_workers;
    return target;
  }

  std::int64_t workspace_bytes(const ExecutorRequest& request) const override {
    return WorkspaceLayout(request.groups, request.targets, request.bounds,
                           request.options->policy.kind == PolicyKind::kBatchInvariant,
                           request.options->measure)
        .ledger.total();
  }

  std::unique_ptr<Executor> make_executor(const ExecutorRequest& request) const override {
    return std::make_unique<CudaExecutor>(family_, context_, KernelCache::process(), request);
  }

 private:
  const FamilyHooks& family_;
  std::shared_ptr<DeviceContext> context_;
};

}  // namespace

const std::vector<const FamilyHooks*>& kernel_families() {
  // Best first: the engine takes the first that does not decline.
  static const std::unique_ptr<FamilyHooks> hopper = make_hopper_family();
  static const std::unique_ptr<FamilyHooks> mma = make_mma_family();
  static const std::vector<const FamilyHooks*> families = {hopper.get(), mma.get()};
  return families;
}

}  // namespace cuda

std::vector<std::unique_ptr<Backend>> make_cuda_backends(const EngineOptions& options) {
  const std::shared_ptr<cuda::DeviceContext> context =
      cuda::DeviceContext::get(options.device.index);
  std::vector<std::unique_ptr<Backend>> backends;
  for (const cuda::FamilyHooks* family : cuda::kernel_families()) {
    backends.push_back(std::make_unique<cuda::FamilyBackend>(*family, context));
  }
  return backends;
}

}  // namespace plait
