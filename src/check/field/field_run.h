// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a case from the field works with: it runs problems on one device and states what must
// hold. A statement that does not hold throws CheckFailed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "check/operand_memory.h"
#include "check/run_problem.h"
#include "oracle/problem.h"
#include "plait/attention.h"
#include "plait/error.h"

namespace plait::check::field {

using Json = nlohmann::json;

class CheckFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class FieldRun {
 public:
  explicit FieldRun(RunOptions options) : options_(std::move(options)) {}

  const RunOptions& options() const noexcept { return options_; }
  bool on_cpu() const noexcept { return options_.device.kind == DeviceKind::kCpu; }

  /// Runs a problem after poisoning everything it must not read.
  RunResult run(const Json& document) const;
  RunResult run(const oracle::Problem& problem) const;
  oracle::Problem parse(const Json& document) const;

  /// Runs, and compares every element with the oracle.
  RunResult run_right(const Json& document, const std::string& what) const;

  /// An engine whose workspaces are full of 0xFF, and memory for its operands.
  Engine engine() const;
  std::unique_ptr<OperandMemory> memory() const { return make_operand_memory(options_.device); }

  // Statements. `row` counts query tokens.
  void expect(bool condition, const std::string& what) const;
  void expect_near(double got, double expected, double tolerance, const std::string& what) const;
  /// Every element of o for (row, head).
  void expect_o(const RunResult& result, std::int64_t row, std::int64_t head, double expected,
                double tolerance, const std::string& what) const;
  void expect_lse(const RunResult& result, std::int64_t row, std::int64_t head, double expected,
                  double tolerance, const std::string& what) const;
  void expect_same_bits(const RunResult& a, const RunResult& b, const std::string& what) const;
  /// The problem is refused, and the message names `field`.
  void expect_refused(const Json& document, const std::string& field) const;
  template <class Action>
  void expect_error(Action&& action, const std::string& field, const std::string& what) const {
    std::string got = "accepted";
    try {
      action();
    } catch (const Error& error) {
      got = error.what();
    }
    expect(got.find(field) != std::string::npos && got != "accepted",
           what + ": expected a refusal that names " + field + ", got: " + got);
  }

 private:
  RunOptions options_;
};

/// A TENSOR with a fill, and the fill of a normal seed.
Json generated(Json shape, Json fill);
Json normal(std::int64_t seed);

/// Paged problem: one request per (qo_lens[i], kv_lens[i]), pages numbered in order. The caller
/// changes what its case is about.
struct Shape {
  std::vector<std::int64_t> qo_lens;
  std::vector<std::int64_t> kv_lens;
  std::int64_t qo_heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t dim_qk = 64;
  std::int64_t dim_vo = 64;
  std::int64_t page_size = 4;
  std::string dtype = "f16";
  std::string o_dtype = "f32";
};
Json paged(const Shape& shape);
/// The same with contiguous keys.
Json ragged(const Shape& shape);

/// Sets a tensor's values, keeping its shape.
void fill(Json& tensor, Json value);

/// v[token] = f(request, index in request, kv head) for every element of the head, in a paged or
/// ragged document of `Shape`; written as data, so small problems only.
Json values_by_token(const Shape& shape, bool is_paged,
                     double (*value)(std::int64_t request, std::int64_t index, std::int64_t head));

}  // namespace plait::check::field
