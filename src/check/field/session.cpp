// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "check/field/session.h"

#include <utility>

#include "check/compare.h"
#include "check/transforms.h"

namespace plait::check::field {

Session::Session(const FieldRun& run, const Json& largest, const Capacity& capacity)
    : run_(run), engine_(run.engine()), memory_(run.memory()) {
  const oracle::Problem problem = run.parse(largest);
  Operands operands(problem);
  attention_ = std::make_unique<Attention>(engine_, std::vector{operands.spec()}, capacity,
                                           Attention::Options{operands.policy(), true, false});
}

RunResult Session::step(const oracle::Problem& problem) {
  Operands operands(problem);
  return run(operands, true);
}

RunResult Session::run(const Json& document, bool plan) {
  oracle::Problem problem = run_.parse(document);
  poison_unread(problem);
  Operands operands(problem);
  return run(operands, plan);
}

RunResult Session::run(Operands& operands, bool plan) {
  const RunArgs args = operands.place(*memory_);
  if (plan) attention_->plan(operands.batch());
  attention_->run(args);
  RunResult result;
  result.o = memory_->fetch(args.o);
  if (args.lse.defined()) result.lse = memory_->fetch(args.lse);
  return result;
}

void Session::expect_right(const Json& document, const RunResult& mine,
                           const std::string& what) const {
  const oracle::Problem problem = run_.parse(document);
  const Comparison comparison = compare_with_oracle(problem, mine);
  run_.expect(comparison.ok, what + ": " + comparison.message);
}

Shape decode_shape(std::vector<std::int64_t> kv_lens, std::int64_t heads) {
  return {std::vector<std::int64_t>(kv_lens.size(), 1), std::move(kv_lens), heads, 2, 64, 64, 16};
}

Capacity capacity_for(std::int64_t requests, std::int64_t tokens) {
  Capacity capacity;
  capacity.max_requests = requests;
  capacity.max_query_rows = requests;
  capacity.max_kv_tokens = tokens;
  return capacity;
}

}  // namespace plait::check::field
