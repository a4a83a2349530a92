// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What is measured on a GPU, a group at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plait/bench/cuda_case.h"
#include "plait/bench/report.h"

namespace plait::bench {

struct CudaBenchOptions {
  CudaCaseOptions problem;
  int repetitions = 15;
};

/// Shape of a case; page_size 0 is ragged.
struct BenchShape {
  int qo_heads = 32;
  int kv_heads = 8;
  int head_dim = 128;
  int page_size = 16;
  MaskKind mask = MaskKind::kNone;
};
AttentionSpec bench_spec(const BenchShape& shape);

/// The problem of the case called `name`; null, and a line on stderr, if no family that may run
/// serves it.
std::unique_ptr<CudaCase> open_case(CudaTimer& timer, const std::string& name,
                                    const AttentionSpec& spec,
                                    const std::vector<CaseRequest>& requests,
                                    const CudaCaseOptions& options, Report& report);

/// Decode against a plain read of the same bytes: equal and skewed lengths, and a shared prefix.
void bench_decode(CudaTimer& timer, const CudaBenchOptions& options, Report& report);
/// Prefill against a matrix product: shapes, head dims and page sizes.
void bench_prefill(CudaTimer& timer, const CudaBenchOptions& options, Report& report);
/// Variants against the same shape without them.
void bench_variants(CudaTimer& timer, const CudaBenchOptions& options, Report& report);
/// Host time of `run` and of `plan` with its upload.
void bench_host(CudaTimer& timer, const CudaBenchOptions& options, Report& report);
/// Host time of capture, re-planning, switching and growing configurations.
void bench_transition(CudaTimer& timer, const CudaBenchOptions& options, Report& report);

struct CudaGroup {
  const char* name;
  void (*run)(CudaTimer&, const CudaBenchOptions&, Report&);
};
inline constexpr CudaGroup kCudaGroups[] = {{"decode", bench_decode},
                                            {"prefill", bench_prefill},
                                            {"variants", bench_variants},
                                            {"host", bench_host},
                                            {"transition", bench_transition}};

/// Runs the named groups, or all. Throws Error{kInvalidArgument} for a name that is not in the
/// table, and Error{kUnsupported} if cases were asked for and every one was declined.
void bench_cuda(const std::vector<std::string>& groups, const CudaBenchOptions& options,
                Report& report);

}  // namespace plait::bench
