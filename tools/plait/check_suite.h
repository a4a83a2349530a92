// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The cases of `plait check`: which are wanted, running them, and what is printed of each.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "check/field/cases.h"
#include "check/generate.h"
#include "check/run_problem.h"
#include "check/variant_cases.h"
#include "oracle/safetensors.h"
#include "plait/engine_options.h"

namespace plait::tool {

struct CheckOptions {
  std::vector<std::string> problems;  // files or texts; empty: the whole suite
  std::string tensors;
  std::uint64_t seed = 1;
  std::int64_t count = 200;
  std::string filter;
  double time_limit = 0;  // seconds; 0: none
  int jobs = 1;
  bool list = false;
  bool verbose = false;
  EngineWords engine;
  check::RunOptions run;
};

class Suite {
 public:
  explicit Suite(const CheckOptions& options);

  /// Whether the filter leaves random problems, variants, field cases, anything.
  bool wants_random() const;
  bool wants_variants() const;
  bool wants_fields() const;
  bool wants_any() const { return wants_random() || wants_variants() || wants_fields(); }
  /// The names that the filter leaves.
  void print_list() const;

  void field_cases();
  void variant_cases();
  void random_cases();
  /// One problem; `document` is shrunk when it fails. Called from several threads.
  void problem(const std::string& name, const nlohmann::json& document,
               const oracle::Safetensors* tensors);

  /// Prints the sums; returns the exit code. Throws if there was no case at all.
  int finish() const;

 private:
  using Json = nlohmann::json;
  using Clock = std::chrono::steady_clock;

  struct Totals {
    std::int64_t passed = 0;
    std::int64_t failed = 0;
    std::int64_t declined = 0;
    std::int64_t runs = 0;
    double worst = 0;
    std::string family;
  };

  bool wanted(const std::string& name) const;
  bool out_of_time() const;
  template <class Work>
  void in_parallel(const Work& work);
  const check::field::FieldCase* next_field_case();
  void field_case(const check::field::FieldCase& field);
  void variant_case(const std::string& name, const check::VariantCase& which, std::uint64_t index);
  bool next_case(std::int64_t& index, Json& document);
  void random_worker();
  void print_passed(const std::string& name, double worst);
  void print_declined(const std::string& name, const std::string& reason);
  std::string device_words() const;

  const CheckOptions& options_;
  check::Aim aim_;
  Clock::time_point start_;
  std::mutex mutex_;  // guards everything below
  Totals totals_;
  std::size_t next_field_ = 0;
  std::int64_t next_index_ = 0;
  std::int64_t drawn_ = 0;
  std::exception_ptr failure_;
  const bool terminal_;
  bool progress_ = false;
};

}  // namespace plait::tool
