// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "core/environment.h"

namespace plait::test {

/// The seed of a random test, and the line that repeats a failure.
class Seed {
 public:
  explicit Seed(std::uint64_t usual) : value_(usual) {
    const std::string chosen = environment("PLAIT_TEST_SEED");
    if (!chosen.empty()) value_ = std::stoull(chosen);
  }
  std::uint64_t value() const noexcept { return value_; }
  std::string repro() const { return "repro: PLAIT_TEST_SEED=" + std::to_string(value_); }

 private:
  std::uint64_t value_;
};

}  // namespace plait::test
