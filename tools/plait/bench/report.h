// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "plait/bench/stats.h"

namespace plait::bench {

/// One measured case. Fields that do not apply stay 0 and are left empty in the CSV.
struct Row {
  std::string name;
  std::string family;  // of kernels; empty where there is none
  int threads = 0;
  Sample sample;
  double teraflops = 0;
  double gigabytes_per_second = 0;
  std::string bound_name;
  double bound = 0;
  double ratio = 0;
};

/// Prints lines as they are measured.
class Report {
 public:
  /// Only cases whose name contains `filter` are wanted.
  explicit Report(std::string filter) : filter_(std::move(filter)) {}
  /// False if nothing named so would be printed, so that it need not be measured.
  bool wants(const std::string& name) const { return name.find(filter_) != std::string::npos; }
  /// Prints a row that is wanted, and drops another.
  void add(const Row& row);
  /// A line of its own kind, such as a coefficient.
  void line(const std::string& text);
  /// Says on stderr that a case was left out.
  void skip(const std::string& name, const std::string& why);
  /// Some case was left out and none measured.
  bool only_skipped() const { return skipped_ && !header_; }
  /// All lines so far.
  const std::string& text() const noexcept { return text_; }

 private:
  std::string filter_;
  std::string text_;
  bool header_ = false;
  bool skipped_ = false;
};

}  // namespace plait::bench
