// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/line_reader.h"

#include "plait/error.h"
#include "serve/trace.h"

namespace plait::serve {

bool LineReader::next() {
  try {
    return read_line();
  } catch (const std::ios_base::failure&) {
    throw Error(ErrorCode::kIo, name_, "a read error", "a readable file");
  }
}

bool LineReader::read_line() {
  line_.clear();
  // A buffer throws when a read fails.
  std::streambuf* buffer = in_.rdbuf();
  constexpr auto kEnd = std::char_traits<char>::eof();
  int c = buffer->sbumpc();
  if (c == kEnd) return false;
  ++number_;
  for (; c != kEnd && c != '\n'; c = buffer->sbumpc()) {
    if (line_.size() == kMaxLineBytes) {
      refuse("line", "more than " + std::to_string(kMaxLineBytes) + " bytes", "a shorter line");
    }
    line_ += static_cast<char>(c);
  }
  if (!line_.empty() && line_.back() == '\r') line_.pop_back();
  return true;
}

void LineReader::refuse(std::string_view field, std::string_view value,
                        std::string_view expected) const {
  throw Error(ErrorCode::kIo, name_ + ":" + std::to_string(number_) + ": " + std::string(field),
              std::string(value), std::string(expected));
}

}  // namespace plait::serve
