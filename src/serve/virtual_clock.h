// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plait::serve {

/// A duration in microseconds that is affine in the tokens of a step, written "A+B*tokens".
struct AffineTime {
  double base_us = 0.0;
  double per_token_us = 0.0;

  double microseconds(std::int64_t tokens) const noexcept {
    return base_us + per_token_us * static_cast<double>(tokens);
  }
};

/// "5000+25*tokens", "5000+25" or "5000". Throws Error{kInvalidArgument} naming `field`; terms
/// must be finite and within [0, 1e9].
AffineTime parse_affine_time(std::string_view text, std::string_view field);
std::string to_string(const AffineTime& time);

/// Time that advances by the model only, never by the wall clock: the same trace and options
/// form the same batches on every machine and in every arm of an ablation.
class VirtualClock {
 public:
  explicit VirtualClock(AffineTime step) : step_(step) {}

  std::int64_t now_ns() const noexcept { return now_ns_; }
  /// Throws Error{kInvalidArgument} naming clock-us when the clock would leave 64 bits.
  void advance_step(std::int64_t tokens);
  /// Idle until `time_ns`; no effect if that has passed.
  void wait_until(std::int64_t time_ns) noexcept {
    if (time_ns > now_ns_) now_ns_ = time_ns;
  }

 private:
  AffineTime step_;
  std::int64_t now_ns_ = 0;
};

}  // namespace plait::serve
