// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/bench/plan_cases.h"

#include "plait/bench/attention_case.h"
#include "plan/fit_capacity.h"
#include "plan/planner.h"

namespace plait::bench {
namespace {

/// Tile classes and costs in the proportions of a GPU's kernels.
PlanTarget gpu_like_target() {
  PlanTarget target;
  target.num_workers = 264;
  target.num_classes = 2;
  target.classes[0] = {16, 64, {32000, 400, 8, 160}};
  target.classes[1] = {128, 128, {64000, 3200, 24, 160}};
  target.canonical = target.classes[1];
  return target;
}

void measure(const char* name, const std::vector<CaseRequest>& requests, double bound_us,
             int repetitions, Report& report) {
  if (!report.wants(name)) return;
  AttentionSpec spec;
  spec.num_qo_heads = 32;
  spec.num_kv_heads = 8;
  spec.head_dim_qk = spec.head_dim_vo = 128;
  spec.page_size = 16;
  const BatchArrays arrays(requests, spec.page_size);
  const Policy policy;
  const PlanTarget target = gpu_like_target();
  const Capacity capacity = fit_capacity({&spec, 1}, {&arrays.batch, 1}, policy);
  Planner planner({&spec, 1}, capacity, policy, {&target, 1});
  Row row;
  row.name = name;
  row.threads = 1;
  for (int i = -3; i < repetitions; ++i) {
    const double seconds = seconds_of([&] { planner.plan({&arrays.batch, 1}); });
    if (i >= 0) row.sample.seconds.push_back(seconds);
  }
  row.bound_name = "goal us";
  row.bound = bound_us;
  row.ratio = row.sample.median() * 1e6 / bound_us;
  report.add(row);
}

}  // namespace

void bench_plan(int repetitions, Report& report) {
  const int many = repetitions * 20;  // microseconds each
  measure("plan 256 decode x 8192", std::vector<CaseRequest>(256, {1, 8192}), 15, many, report);
  measure("plan 1024 decode x 8192", std::vector<CaseRequest>(1024, {1, 8192}), 60, many, report);
  measure("plan 256 decode log-uniform 1..8192", log_uniform_requests(256, 8192, 1), 15, many,
          report);
  measure("plan 256 skewed decode", skewed_requests(256, 1), 30, many, report);
  std::vector<CaseRequest> mixed = skewed_requests(64, 1);
  mixed.insert(mixed.end(), 4, {4096, 4096});
  measure("plan 64 skewed decode + 4 prefill chunks of 4096", mixed, 30, many, report);
}

}  // namespace plait::bench
