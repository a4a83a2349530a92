// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// Text of unknown origin in a one-line message.
#pragma once

#include <string>
#include <string_view>

namespace plait {

/// `text` on one line that a terminal shows as it is: line ends and tabs become blanks, other
/// control characters and bytes that are not UTF-8 become '?'.
std::string printable(std::string_view text);

/// `text` in quotes, printable, cut after 64 bytes.
std::string quote_text(std::string_view text);

}  // namespace plait
