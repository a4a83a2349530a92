// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/trace.h"

#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "core/text.h"
#include "plait/error.h"
#include "serve/hash.h"

namespace plait::serve {

std::uint64_t chain_block_key(std::uint64_t previous_key, std::uint64_t block_id) noexcept {
  return hash_combine(previous_key, block_id);
}

namespace {

/// Spreadsheets put one before their UTF-8. Nothing else of a trace begins as it does.
void skip_byte_order_mark(std::istream& in, const std::string& name) {
  if (in.peek() != 0xef) return;
  std::string mark(3, '\0');
  in.read(mark.data(), 3);
  if (mark == "\xef\xbb\xbf") return;
  throw Error(ErrorCode::kIo, name, quote_text(mark), "a trace, or a byte order mark before it");
}

}  // namespace

Trace read_trace(std::istream& in, const std::string& name, TraceFormat format,
                 std::int64_t limit) {
  skip_byte_order_mark(in, name);
  if (format == TraceFormat::kAuto) {
    format = in.peek() == '{' ? TraceFormat::kMooncake : TraceFormat::kAzure;
    in.clear();
  }
  return format == TraceFormat::kMooncake ? read_mooncake(in, name, limit)
                                          : read_azure(in, name, limit);
}

Trace read_trace_file(const std::string& path, TraceFormat format, std::int64_t limit) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    throw Error(ErrorCode::kIo, "trace", quote_text(path) + " (" + std::strerror(errno) + ")",
                "a readable file");
  }
  if (S_ISDIR(info.st_mode)) {
    throw Error(ErrorCode::kIo, "trace", quote_text(path) + " (a directory)", "a readable file");
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw Error(ErrorCode::kIo, "trace", quote_text(path) + " (" + std::strerror(errno) + ")",
                "a readable file");
  }
  const std::size_t slash = path.rfind('/');
  // Goes into messages and reports.
  const std::string name = printable(slash == std::string::npos ? path : path.substr(slash + 1));
  return read_trace(in, name, format, limit);
}

namespace {

/// A hundred years, as in trace files: beyond it nanoseconds would leave 64 bits.
constexpr double kMaxArrivalNs = 100.0 * 366 * 24 * 3600 * 1e9;

std::int64_t arrival(double ns, const char* field, double value) {
  if (!(ns <= kMaxArrivalNs)) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", value);
    throw Error(ErrorCode::kInvalidArgument, field, text,
                "a value that puts no arrival beyond a hundred years");
  }
  return static_cast<std::int64_t>(std::llround(ns));
}

}  // namespace

void scale_time(Trace& trace, double factor) {
  for (TraceRequest& request : trace.requests) {
    request.arrival_ns =
        arrival(static_cast<double>(request.arrival_ns) / factor, "time-scale", factor);
  }
}

void set_rate(Trace& trace, double requests_per_second, std::uint64_t seed) {
  Random random(hash_combine(seed, 0x72617465));
  double seconds = 0.0;
  for (TraceRequest& request : trace.requests) {
    request.arrival_ns = arrival(seconds * 1e9, "rate", requests_per_second);
    seconds += -std::log1p(-random.uniform()) / requests_per_second;
  }
}

}  // namespace plait::serve
