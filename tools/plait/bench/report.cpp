// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/bench/report.h"

#include <fmt/format.h>

#include <cstdio>

#include "plait/standard_streams.h"

namespace plait::bench {
namespace {

std::string number(double value) {
  return value == 0.0 ? std::string() : fmt::format("{:.4g}", value);
}

}  // namespace

void Report::line(const std::string& text) {
  std::printf("%s\n", text.c_str());
  tool::flush_output();
  text_ += text + "\n";
}

void Report::add(const Row& row) {
  if (!wants(row.name)) return;
  if (!header_) {
    line(
        "case,family,threads,repetitions,median_us,p10_us,p90_us,tflops,gb_per_s,bound,bound_value,"
        "ratio");
    header_ = true;
  }
  line(fmt::format("{},{},{},{},{:.4g},{:.4g},{:.4g},{},{},{},{},{}", row.name, row.family,
                   row.threads, row.sample.seconds.size(), row.sample.median() * 1e6,
                   row.sample.quantile(0.1) * 1e6, row.sample.quantile(0.9) * 1e6,
                   number(row.teraflops), number(row.gigabytes_per_second), row.bound_name,
                   number(row.bound), number(row.ratio)));
}

void Report::skip(const std::string& name, const std::string& why) {
  std::fprintf(stderr, "plait bench: skipped %s: %s\n", name.c_str(), why.c_str());
  skipped_ = true;
}

}  // namespace plait::bench
