// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "serve/virtual_clock.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "core/text.h"
#include "plait/error.h"

namespace plait::serve {
namespace {

bool parse_term(std::string_view text, double& value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return !text.empty() && result.ec == std::errc() && result.ptr == end && value >= 0.0 &&
         value <= 1e9;
}

}  // namespace

AffineTime parse_affine_time(std::string_view text, std::string_view field) {
  AffineTime time;
  const std::size_t plus = text.find('+');
  std::string_view slope = plus == std::string_view::npos ? "0" : text.substr(plus + 1);
  constexpr std::string_view kUnit = "*tokens";
  if (slope.size() >= kUnit.size() && slope.substr(slope.size() - kUnit.size()) == kUnit) {
    slope.remove_suffix(kUnit.size());
  }
  if (!parse_term(text.substr(0, plus), time.base_us) || !parse_term(slope, time.per_token_us)) {
    throw Error(ErrorCode::kInvalidArgument, std::string(field), quote_text(text),
                "A+B*tokens in microseconds, each term in 0..1e9, for example 5000+25*tokens");
  }
  return time;
}

std::string to_string(const AffineTime& time) {
  char text[80];
  std::snprintf(text, sizeof text, "%g+%g*tokens us", time.base_us, time.per_token_us);
  return text;
}

void VirtualClock::advance_step(std::int64_t tokens) {
  constexpr std::int64_t kLast = std::int64_t{1} << 62;
  const double ns = step_.microseconds(tokens) * 1e3;
  if (!(ns < static_cast<double>(kLast - now_ns_))) {
    throw Error(ErrorCode::kInvalidArgument, "clock-us", to_string(step_),
                "step times that sum to less than 2^62 ns over the replay");
  }
  now_ns_ += std::max<std::int64_t>(static_cast<std::int64_t>(ns), 1);
}

}  // namespace plait::serve
