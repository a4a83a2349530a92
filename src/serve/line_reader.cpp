// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/line_reader.h"

#include "plait/error.h"
#include "serve/trace.h"

namespace plait::serve {

std::string quote_text(std::string_view text) {
  constexpr std::size_t kShown = 64;
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    out += (byte < 0x20 || byte >= 0x7f) ? '?' : c;
  }
  if (text.size() > kShown) out += "...";
  out += '"';
  return out;
}

bool LineReader::next() {
  line_.clear();
  std::streambuf* buffer = in_.rdbuf();
  constexpr auto kEnd = std::char_traits<char>::eof();
  int c = buffer->sbumpc();
  if (c == kEnd) {
    // A directory opens as a stream and fails on the first read only.
    if (in_.bad()) throw Error(ErrorCode::kIo, name_, "a read error", "a readable file");
    return false;
  }
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
