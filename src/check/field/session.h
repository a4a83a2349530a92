// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// One Attention that lives through several batches; every run must equal a fresh object's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "check/field/field_run.h"
#include "check/operands.h"

namespace plait::check::field {

class Session {
 public:
  /// For the spec and policy of `largest`.
  Session(const FieldRun& run, const Json& largest, const Capacity& capacity);

  RunResult step(const Json& document) { return run(document, true); }
  /// The same for a problem whose unread memory is left as it is.
  RunResult step(const oracle::Problem& problem);

  void expect_same_as_fresh(const Json& document, const std::string& what) {
    expect_right(document, run(document, true), what);
  }
  /// The same with the plan that is there already.
  void expect_planned(const Json& document, const std::string& what) {
    expect_right(document, run(document, false), what);
  }

  Attention& attention() { return *attention_; }

 private:
  RunResult run(const Json& document, bool plan);
  RunResult run(Operands& operands, bool plan);
  void expect_right(const Json& document, const RunResult& mine, const std::string& what) const;

  const FieldRun& run_;
  Engine engine_;
  std::unique_ptr<OperandMemory> memory_;
  std::unique_ptr<Attention> attention_;
};

/// One query row for each of `kv_lens`.
Shape decode_shape(std::vector<std::int64_t> kv_lens, std::int64_t heads = 8);

/// Of decode batches.
Capacity capacity_for(std::int64_t requests, std::int64_t tokens);

}  // namespace plait::check::field
