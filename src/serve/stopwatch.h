// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace plait::serve {

class Stopwatch {
 public:
  double microseconds() const noexcept {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace plait::serve
