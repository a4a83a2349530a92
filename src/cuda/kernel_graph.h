// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "cuda/jit/loaded_kernel.h"

namespace plait::cuda {

/// A graph of kernels, put together node by node: a capture would forbid other threads to
/// synchronise with the device meanwhile. The context must be current.
class KernelGraph {
 public:
  explicit KernelGraph(const Driver& driver);
  ~KernelGraph();
  KernelGraph(const KernelGraph&) = delete;
  KernelGraph& operator=(const KernelGraph&) = delete;

  /// One grid that begins when those of `after` have ended; the values of `arguments` are copied.
  CuGraphNode add(const LoadedKernel& kernel, LaunchGrid grid, void** arguments,
                  std::span<const CuGraphNode> after = {});
  /// `second` may start while `first` still runs, as `launch` does with overlap_previous. Not every
  /// driver can do it: see Driver::graph_add_dependencies.
  void overlap(CuGraphNode first, CuGraphNode second);
  /// Independent of this object. May allocate device memory, and then waits for running work.
  CuGraphExec instantiate() const;

 private:
  const Driver& driver_;
  CuGraph graph_ = nullptr;
};

}  // namespace plait::cuda
