// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plait/batch.h"
#include "plait/capacity.h"
#include "plait/error.h"
#include "plait/spec.h"
#include "plait/tensor.h"

namespace plait {

/// A caller's stream (cudaStream_t / CUstream); ignored on the CPU.
struct Stream {
  void* handle = nullptr;
};

/// Where workspaces come from. Both functions must be thread safe; `allocate` returns null when
/// there is no memory, and multiples of 256 bytes on a GPU; `deallocate` must not throw. Default:
/// host or device malloc. One without the other is refused.
struct Allocator {
  std::function<void*(std::int64_t bytes, Device device)> allocate;
  std::function<void(void* memory, Device device)> deallocate;
};

/// Of EngineOptions::run_graphs.
inline constexpr std::int32_t kMaxRunGraphs = 4096;

struct EngineOptions {
  Device device;                 // where attention runs
  std::string family = "auto";   // "auto", "cpu", "mma", "hopper": forces one backend
  std::int32_t num_threads = 0;  // CPU pool size; 0: PLAIT_NUM_THREADS, else the cores; CPU only
  /// CUDA only. Runs that bring the same operands step after step are launched as graphs that plans
  /// make, for half the host's time or less: how many an Attention keeps, 0 to kMaxRunGraphs; 0:
  /// none; not given: 256. Each takes the driver some 120 KiB of device memory.
  std::optional<std::int32_t> run_graphs;
  Allocator allocator;
};

/// What a finished plan looks like, for logs and for `plait explain`. Loads are in the cost
/// model's units, 1/16 of a predicted nanosecond.
struct PlanSummary {
  std::int64_t num_items = 0;
  std::int64_t num_partial_states = 0;
  std::int32_t num_workers = 0;
  std::int64_t largest_load = 0;
  std::int64_t mean_load = 0;
  std::int64_t largest_item = 0;
  std::int64_t metadata_bytes = 0;   // bytes that the upload moves
  std::int64_t workspace_bytes = 0;  // high-water mark of this plan
};

/// Operands of one layer. Every tensor lives on the engine's device, except that the CPU takes
/// host memory. Shapes use total_q = qo_indptr.back() of the plan. What is read may share memory;
/// `o` and `lse` share none with each other or with anything else, except as views of one buffer
/// that are apart modulo a stride of either (rows of q beside rows of o).
struct RunArgs {
  std::int32_t group = 0;  // which layer group of the plan
  Tensor q;                // [total_q, num_qo_heads, head_dim_qk], q_dtype, innermost stride 1
  Tensor k;                // paged: see KvLayout; ragged: [total_kv, num_kv_heads, head_dim_qk]
  Tensor v;                // same with head_dim_vo; may alias k
  std::span<const Tensor> page_ids;   // one per view, i32 [number of listed pages]; none if ragged
  std::span<const Tensor> positions;  // one per view if any view has positions, i32, like page_ids;
                                      // undefined tensors for views without
  Tensor custom_mask;  // u8, packed little-endian bits, each request starts on a byte
  /// f32 [num_qo_heads]. Those on the CPU are refused unless finite; on a GPU, what is not finite
  /// makes the outputs of its head undefined.
  Tensor alibi_slopes;
  Tensor sink;           // f32 [num_qo_heads]
  float k_scale = 1.0F;  // multiplies k after widening
  float v_scale = 1.0F;
  Tensor k_scales;  // f32 [num_kv_heads], instead of the scalar
  Tensor v_scales;
  Tensor q_rope_positions;  // i32 [total_q]
  /// i32 [sum of kv_len], request by request, indexed by logical position. A row block that several
  /// requests share rotates each key once, by the first request's entry: the others have to state
  /// the same for the keys of that block, which checked mode verifies.
  Tensor k_rope_positions;
  Tensor o;            // [total_q, num_qo_heads, head_dim_vo], o_dtype; f32 if `state`
  Tensor lse;          // f32 [total_q, num_qo_heads], optional unless `state` with softmax
  bool state = false;  // return the mergeable state: no sink, no output hook
  Stream stream;
};

namespace detail {
class AttentionImpl;
class EngineImpl;
struct EngineAccess;
}  // namespace detail

/// An ordered list of backends on one device. One that was moved from can be assigned to or
/// destroyed, nothing else; so it is with Attention.
class Engine {
 public:
  explicit Engine(EngineOptions options = {});
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  /// One line per backend that declines `spec`, with its reason; empty if the first one serves it.
  std::vector<std::string> refusals(const AttentionSpec& spec) const;
  const EngineOptions& options() const noexcept;

 private:
  friend class Attention;
  friend struct detail::EngineAccess;
  std::shared_ptr<detail::EngineImpl> impl_;
};

/// Specs of the layer groups plus capacity plus workspace. Not thread safe; runs of one object do
/// not overlap each other.
class Attention {
 public:
  struct Options {
    Policy policy;
    /// Verifies every plan independently; on the host, page ids, positions against the plan and
    /// kv_len, that no query lists a page twice, and that requests which share a row block agree on
    /// k_rope_positions. Synchronises runs on a GPU.
    bool checked = false;
    bool measure = false;  // record per-worker start and end of every run
  };

  /// Picks the backend, compiles or loads its kernels and allocates the workspace. Throws before
  /// anything is kept. Refused with Error{kMismatch} while a stream is captured that waits for the
  /// legacy one.
  Attention(const Engine& engine, std::vector<AttentionSpec> groups, const Capacity& capacity,
            Options options);
  ~Attention();
  Attention(Attention&&) noexcept;
  Attention& operator=(Attention&&) noexcept;

  /// Plans all layer groups (one Batch for all, or one per group) and uploads the plan on `stream`,
  /// so that runs and graph replays of that stream see it from then on; other streams are joined by
  /// the caller's events. A refused batch leaves the previous plan valid. Refused with
  /// Error{kMismatch} on a stream that is being captured, since a graph reads whatever plan is
  /// current, and with Error{kInvalidArgument} on a stream of another device.
  void plan(std::span<const Batch> batches, Stream stream = {});
  void plan(const Batch& batch, Stream stream = {}) {
    plan(std::span<const Batch>(&batch, 1), stream);
  }

  /// Computes one layer with the current plan. Allocates, compiles and synchronises nothing, so on
  /// a GPU it can be captured into a CUDA graph, which then serves every later plan within the
  /// capacity. A captured run keeps addresses, strides and scalars of `args`; every operand that a
  /// later plan may read needs an address. The graph keeps workspace and kernels alive, even beyond
  /// this object; operands are the caller's. A capture is refused with Error{kMismatch} in checked
  /// mode.
  void run(const RunArgs& args);

  /// Throws if a run since the last call saw a page id outside the pool. Synchronises `stream`;
  /// refused with Error{kMismatch} on one that is being captured.
  void status(Stream stream = {});

  /// Bytes needed for `groups` and `capacity` on this engine.
  static std::int64_t workspace_bytes(const Engine& engine, std::span<const AttentionSpec> groups,
                                      const Capacity& capacity, const Options& options);

  std::string family() const;                     // which backend serves this object
  PlanSummary summary(std::int32_t group) const;  // of the current plan
  const detail::AttentionImpl& impl() const noexcept { return *impl_; }
  detail::AttentionImpl& impl() noexcept { return *impl_; }

 private:
  std::unique_ptr<detail::AttentionImpl> impl_;
};

}  // namespace plait
