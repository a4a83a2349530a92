// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include "plait/problem_argument.h"

#include <cstdint>

#include "core/file.h"
#include "core/text.h"
#include "oracle/parse_problem.h"
#include "oracle/safetensors.h"
#include "plait/error.h"

namespace plait::tool {

bool is_problem_text(const std::string& word) {
  const auto first = word.find_first_not_of(" \t\r\n");
  return first != std::string::npos && word[first] == '{';
}

std::string problem_text(const std::string& word) {
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;
  return is_problem_text(word) ? word : read_file(word, "problem", kMaxBytes);
}

oracle::Problem read_problem(const std::string& word, const std::string& tensors_path) {
  const std::string text = problem_text(word);
  if (tensors_path.empty()) return oracle::parse_problem(text, nullptr);
  const auto tensors = oracle::Safetensors::read(tensors_path, "tensors");
  oracle::Problem problem = oracle::parse_problem(text, &tensors);
  require_use(tensors_path, problem);
  return problem;
}

void require_use(const std::string& tensors_path, const oracle::Problem& problem) {
  if (problem.names_tensors) return;
  throw Error(ErrorCode::kInvalidArgument, "tensors", quote_text(tensors_path),
              "a file of which the problem names a tensor");
}

}  // namespace plait::tool
