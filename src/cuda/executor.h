// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/branches.h"
#include "cuda/captures.h"
#include "cuda/device.h"
#include "cuda/family.h"
#include "cuda/jit/kernel_cache.h"
#include "cuda/operands.h"
#include "cuda/run_graphs.h"
#include "cuda/staging_ring.h"
#include "cuda/tensor_maps.h"
#include "cuda/workspace.h"
#include "plan/backend.h"

namespace plait::cuda {

/// Serves one Attention with the kernels of one family on one device.
class CudaExecutor final : public Executor {
 public:
  /// Compiles or loads every kernel that any plan or run of the object can need, and allocates
  /// everything: `run` does neither.
  CudaExecutor(const FamilyHooks& family, std::shared_ptr<DeviceContext> context,
               KernelCache& kernels, const ExecutorRequest& request);
  ~CudaExecutor() override;

  std::span<std::int32_t> plan_words() override;
  void upload(const Plan& plan, Stream stream) override;
  void run(const RunArgs& args) override;
  void status(Stream stream) override;
  std::vector<WorkerTime> worker_times(Stream stream) const override;
  std::vector<std::uint64_t> living_captures() const override;
  std::int64_t num_run_graphs() const override { return run_graphs_.size(); }
  std::vector<std::int32_t> read_i32(const Tensor& tensor, Stream stream) const override;

 private:
  /// One tile class of a layer group: the kernels for finalised and for mergeable output, which are
  /// the same one for families that decide at run time.
  struct ClassKernels {
    TileClass tile;
    std::array<std::shared_ptr<const LoadedKernel>, 2> by_state;
  };
  struct Group {
    AttentionSpec spec;
    int num_workers = 0;
    std::vector<ClassKernels> classes;
    device::AttentionParams params{};  // what neither plan nor run changes
  };
  /// Everything whose address a captured launch holds; graphs share it.
  struct State {
    std::shared_ptr<DeviceContext> context;
    std::unique_ptr<Workspace> workspace;
    DeviceBuffer constants;  // rope tables and parameters of user variants
    std::vector<Group> groups;
  };

  /// Words in the table of worker times.
  std::size_t worker_time_count() const noexcept;
  void load_kernels(const ExecutorRequest& request, KernelCache& kernels);
  void upload_constants();
  /// Whether `args` is being captured; if so, ties what the launch uses to the graph.
  bool note_capture(const RunArgs& args, CuStream stream);
  /// The launches of a run: one per tile class, then one that merges, if any does.
  struct PreparedRun {
    std::array<ParameterBuffer, device::kMaxClasses + 1> parameters;
    std::size_t classes = 0;
    bool merge = false;
  };
  /// Completes all parameters, or refuses operands: before anything is launched.
  void prepare_run(const RunKey& key, PreparedRun* run);
  /// `parameters` hold the common ones, of any class.
  void prepare_class(int class_index, ParameterBuffer& parameters);
  /// `overlap`: grids may start while the one before them still runs.
  void launch_run(const RunKey& key, CuStream stream, bool overlap);
  /// Launches as launch_run would outside a capture, to a graph.
  void add_run(const RunKey& key, KernelGraph& graph);
  const LoadedKernel& kernel_of(const device::AttentionParams& common) const;
  LaunchGrid grid_of(const device::AttentionParams& common) const;
  /// What a run does not launch must not show the times of an earlier one.
  void forget_worker_times(CuStream stream) const;
  /// Whether grids of eager runs overlap.
  bool overlaps() const noexcept;

  const FamilyHooks& family_;
  std::shared_ptr<State> state_;
  PlanBounds bounds_;
  std::uint64_t spec_fingerprint_;
  WorkspaceLayout layout_;
  bool canonical_ = false;
  bool measured_ = false;
  bool checked_ = false;
  int widest_grid_ = 1;  // workers per tile class in the table of times
  KnownAddresses known_addresses_;
  TensorMaps tensor_maps_;
  std::int64_t zeros_in_copy_;
  StagingRing ring_;
  Branches branches_;
  RunGraphs run_graphs_;
  Captures captures_;
  // Slices of the current plan, [group][class]: a class without work is not launched, except into a
  // graph, which has to serve later plans.
  std::vector<std::array<std::int32_t, device::kMaxClasses>> slices_;
  // Whether states of the current plan are merged by a launch of their own, [group]. A graph keeps
  // what was decided when it was captured: either way serves every plan.
  std::vector<bool> merge_later_;
};

}  // namespace plait::cuda
