// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <fstream>
#include <string>

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

/// Prints lines as they are measured, and writes them to a file if asked.
class Report {
 public:
  /// Throws Error{kIo} if `path` is not empty and cannot be written. Only cases whose name contains
  /// `filter` are wanted.
  Report(const std::string& path, std::string filter);
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

 private:
  std::ofstream file_;
  std::string path_;
  std::string filter_;
  bool header_ = false;
  bool skipped_ = false;
};

}  // namespace plait::bench
