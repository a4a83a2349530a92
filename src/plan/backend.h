// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a backend is to the layers above. Nothing here, in include/ or in src/core knows which
// backends exist; src/engine lists them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plait/attention.h"
#include "plait/ops.h"
#include "plan/planner.h"

namespace plait {

/// Start and end of one worker's work in the last measured run, nanoseconds from the run's start.
struct WorkerTime {
  std::int32_t class_index = 0;
  std::int32_t worker = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t merge_ns = 0;  // of that, merging partial states (where the backend can tell)
};

/// What serves one Attention: its kernels, workspace and the uploaded plan.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Where the next plan may be written, for an upload that has nothing to copy on the host; empty:
  /// anywhere else.
  virtual std::span<std::int32_t> plan_words() { return {}; }
  /// Makes `plan` the current one. The data is copied before this returns, or lies in `plan_words`.
  virtual void upload(const Plan& plan, Stream stream) = 0;
  /// Arguments were validated against spec and plan by the caller.
  virtual void run(const RunArgs& args) = 0;
  virtual void status(Stream stream) = 0;
  /// Of the last run, which `stream` had; waits for that stream and for no other.
  virtual std::vector<WorkerTime> worker_times(Stream stream) const {
    (void)stream;
    return {};
  }
  /// Ids of captures whose graphs exist and hold runs of this object.
  virtual std::vector<std::uint64_t> living_captures() const { return {}; }
  /// Runs, told apart by their operands and kernels, that are launched as graphs now.
  virtual std::int64_t num_run_graphs() const { return 0; }
  /// Host copy of a contiguous i32 operand, for checked mode (synchronises where needed).
  virtual std::vector<std::int32_t> read_i32(const Tensor& tensor, Stream stream) const {
    (void)stream;
    const auto* data = static_cast<const std::int32_t*>(tensor.data);
    return {data, data + tensor.size()};
  }
};

struct ExecutorRequest {
  std::span<const AttentionSpec> groups;
  std::span<const PlanTarget> targets;
  PlanBounds bounds;
  const Capacity* capacity = nullptr;
  const Attention::Options* options = nullptr;
  const EngineOptions* engine = nullptr;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view family() const noexcept = 0;  // "cpu", "mma", "hopper"
  virtual DeviceKind device_kind() const noexcept = 0;
  /// Empty if it serves the combination, else one sentence that says why not.
  virtual std::string decline(const AttentionSpec& spec, const EngineOptions& engine) const = 0;
  /// The same for a planning policy, whatever the spec.
  virtual std::string decline_policy(const Policy& policy) const {
    (void)policy;
    return {};
  }
  virtual PlanTarget target(const AttentionSpec& spec, const Policy& policy,
                            const EngineOptions& engine) const = 0;
  virtual std::int64_t workspace_bytes(const ExecutorRequest& request) const = 0;
  virtual std::unique_ptr<Executor> make_executor(const ExecutorRequest& request) const = 0;
};

/// Free operations of one kind of device; the functions of plait/ops.h dispatch to it after
/// validating shapes, dtypes and devices.
class Operations {
 public:
  virtual ~Operations() = default;
  virtual void merge_state(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b,
                           const Tensor& lse_b, const Tensor& o, const Tensor& lse,
                           const Tensor& mask, Stream stream) = 0;
  virtual void merge_states(const Tensor& o_states, const Tensor& lse_states, const Tensor& o,
                            const Tensor& lse, Stream stream) = 0;
  virtual void finalize_state(const Tensor& o_state, const Tensor& lse_state, const Tensor& sink,
                              const Tensor& o, Stream stream) = 0;
  virtual void append_paged_kv(const Tensor& k, const Tensor& v, const Tensor& batch_indices,
                               const Tensor& positions, const Tensor& page_indptr,
                               const Tensor& page_ids, const Tensor& k_cache, const Tensor& v_cache,
                               KvLayout layout, float k_scale, float v_scale, Stream stream) = 0;
  virtual void apply_rope(const Tensor& x, const Tensor& positions, const RopeSpec& rope,
                          const Tensor& out, Stream stream) = 0;
};

}  // namespace plait
