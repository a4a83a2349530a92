// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "core/text.h"

#include <cstddef>

namespace plait {
namespace {

constexpr std::size_t kShown = 64;

std::size_t sequence_length(unsigned char lead) {
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  if (lead >= 0xf0 && lead <= 0xf4) return 4;
  return 0;
}

/// Bytes of the printable character that `text` starts with; 0 if it starts with none.
std::size_t character_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead >= 0x20 && lead < 0x7f) return 1;
  const std::size_t length = sequence_length(lead);
  if (length == 0 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0U) != 0x80U) return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  // U+0080..U+009F are control characters; the others are overlong, surrogates or out of range.
  if (lead == 0xc2 && second < 0xa0) return 0;
  if (lead == 0xe0 && second < 0xa0) return 0;
  if (lead == 0xed && second > 0x9f) return 0;
  if (text.substr(0, length) == "\xef\xbb\xbf") return 0;  // a byte order mark shows as nothing
  if (lead == 0xf0 && second < 0x90) return 0;
  if (lead == 0xf4 && second > 0x8f) return 0;
  return length;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    if (length > 0) {
      out += text.substr(0, length);
    } else {
      out += text[0] == '\n' || text[0] == '\r' || text[0] == '\t' ? ' ' : '?';
    }
    text.remove_prefix(length > 0 ? length : 1);
  }
  return out;
}

std::string quote_text(std::string_view text) {
  if (text.size() <= kShown) return "\"" + printable(text) + "\"";
  std::size_t end = kShown;
  // Not within a character.
  while (end > kShown - 4 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;
  return "\"" + printable(text.substr(0, end)) + "...\"";
}

}  // namespace plait
