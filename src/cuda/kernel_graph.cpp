// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "cuda/kernel_graph.h"

#include <string>

#include "plait/error.h"

namespace plait::cuda {

KernelGraph::KernelGraph(const Driver& driver) : driver_(driver) {
  driver_.check(driver_.graph_create(&graph_, 0), "cuGraphCreate");
}

KernelGraph::~KernelGraph() { driver_.graph_destroy(graph_); }

CuGraphNode KernelGraph::add(const LoadedKernel& kernel, LaunchGrid grid, void** arguments,
                             std::span<const CuGraphNode> after) {
  const KernelLaunch& info = kernel.launch_info();
  if (info.cluster_size > 1) {
    throw Error(ErrorCode::kUnsupported, "cluster_size", std::to_string(info.cluster_size),
                "1 in a graph of kernels");
  }
  CuKernelNode params{};
  params.function = kernel.function();
  params.grid_x = grid.x;
  params.grid_y = grid.y;
  params.grid_z = grid.z;
  params.block_x = static_cast<unsigned>(info.threads);
  params.block_y = 1;
  params.block_z = 1;
  params.shared_bytes = static_cast<unsigned>(info.dynamic_shared_bytes);
  params.arguments = arguments;
  CuGraphNode node = nullptr;
  driver_.check(driver_.graph_add_kernel_node(&node, graph_, after.data(), after.size(), &params),
                "cuGraphAddKernelNode");
  return node;
}

void KernelGraph::overlap(CuGraphNode first, CuGraphNode second) {
  CuGraphEdge edge{};
  edge.from_port = kCuKernelPortProgrammatic;
  edge.type = kCuGraphEdgeProgrammatic;
  driver_.check(driver_.graph_add_dependencies(graph_, &first, &second, &edge, 1),
                "cuGraphAddDependencies");
}

CuGraphExec KernelGraph::instantiate() const {
  CuGraphExec exec = nullptr;
  driver_.check(driver_.graph_instantiate(&exec, graph_, 0), "cuGraphInstantiate");
  return exec;
}

}  // namespace plait::cuda
