// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/problem_argument.h"

#include <cstdint>

#include "core/file.h"

namespace plait::tool {

bool is_problem_text(const std::string& word) {
  const auto first = word.find_first_not_of(" \t\r\n");
  return first != std::string::npos && word[first] == '{';
}

std::string problem_text(const std::string& word) {
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;
  return is_problem_text(word) ? word : read_file(word, "problem", kMaxBytes);
}

}  // namespace plait::tool
