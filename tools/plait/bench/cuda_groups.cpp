// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#if PLAIT_WITH_CUDA
#include "plait/bench/cuda_groups.h"

#include <fmt/format.h>

#include <algorithm>

#include "plait/error.h"

namespace plait::bench {

AttentionSpec bench_spec(const BenchShape& shape) {
  AttentionSpec spec;
  spec.num_qo_heads = shape.qo_heads;
  spec.num_kv_heads = shape.kv_heads;
  spec.head_dim_qk = spec.head_dim_vo = shape.head_dim;
  spec.kv_kind = shape.page_size == 0 ? KvKind::kRagged : KvKind::kPaged;
  spec.page_size = std::max(shape.page_size, 1);
  spec.mask = shape.mask;
  return spec;
}

std::unique_ptr<CudaCase> open_case(CudaTimer& timer, const std::string& name,
                                    const AttentionSpec& spec,
                                    const std::vector<CaseRequest>& requests,
                                    const CudaCaseOptions& options, Report& report) {
  try {
    return std::make_unique<CudaCase>(timer, spec, requests, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    report.skip(name, error.what());
    return nullptr;
  }
}

void bench_cuda(const std::vector<std::string>& groups, const CudaBenchOptions& options,
                Report& report) {
  for (const std::string& name : groups) {
    if (std::none_of(std::begin(kCudaGroups), std::end(kCudaGroups),
                     [&](const CudaGroup& group) { return name == group.name; })) {
      std::string names;
      for (const CudaGroup& group : kCudaGroups) names += fmt::format(" {}", group.name);
      throw Error(ErrorCode::kInvalidArgument, "groups", name, "on a GPU one of" + names);
    }
  }
  CudaTimer timer(cuda::DeviceContext::get(options.problem.device));
  for (const CudaGroup& group : kCudaGroups) {
    if (groups.empty() || std::find(groups.begin(), groups.end(), group.name) != groups.end()) {
      group.run(timer, options, report);
    }
  }
  if (report.only_skipped()) {
    throw Error(ErrorCode::kUnsupported, "--family", options.problem.family,
                "a family that serves one of the cases asked for");
  }
}

}  // namespace plait::bench
#endif  // PLAIT_WITH_CUDA
