// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cpu/cpu_backend.h"

#include <algorithm>

#include "cpu/cost.h"
#include "cpu/executor.h"
#include "cpu/thread_pool.h"

namespace plait {
namespace cpu {
namespace {

class CpuBackend final : public Backend {
 public:
  std::string_view family() const noexcept override { return "cpu"; }
  DeviceKind device_kind() const noexcept override { return DeviceKind::kCpu; }

  std::string decline(const AttentionSpec& spec, const EngineOptions&) const override {
    if (spec.head_dim_qk > 576) return "head_dim_qk is above 576";
    if (spec.head_dim_vo > 512) return "head_dim_vo is above 512";
    return {};
  }

  PlanTarget target(const AttentionSpec& spec, const Policy& policy,
                    const EngineOptions& engine) const override {
    return plan_target(spec, policy, thread_count(engine.num_threads));
  }

  std::int64_t workspace_bytes(const ExecutorRequest& request) const override {
    return CpuExecutor::workspace_bytes(request);
  }

  std::unique_ptr<Executor> make_executor(const ExecutorRequest& request) const override {
    return std::make_unique<CpuExecutor>(request);
  }
};

}  // namespace
}  // namespace cpu

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<cpu::CpuBackend>(); }

}  // namespace plait
