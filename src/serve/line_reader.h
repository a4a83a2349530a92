// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <string_view>

namespace plait::serve {

/// Lines of a text file with their numbers, of bounded length: a file without a single newline
/// must not be read into memory as one line.
class LineReader {
 public:
  LineReader(std::istream& in, std::string name) : in_(in), name_(std::move(name)) {}

  /// False at the end of the file. Accepts "\n" and "\r\n".
  /// Throws Error{kIo} if the line is longer than kMaxLineBytes or the stream fails.
  bool next();

  std::string_view line() const noexcept { return line_; }
  std::int64_t number() const noexcept { return number_; }
  const std::string& name() const noexcept { return name_; }

  /// Throws Error{kIo} for `field` of the current line.
  [[noreturn]] void refuse(std::string_view field, std::string_view value,
                           std::string_view expected) const;

 private:
  bool read_line();

  std::istream& in_;
  std::string name_;
  std::string line_;
  std::int64_t number_ = 0;
};

}  // namespace plait::serve
