// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oracle/problem.h"

namespace plait::tool {

/// Whether a word of the command line is the text of a problem, and not the path of one.
bool is_problem_text(const std::string& word);

/// The text of the problem that a word is or names. Throws Error{kIo}.
std::string problem_text(const std::string& word);

/// The problem that a word is or names, with the tensors of a file unless its path is empty. Throws
/// Error naming what is wrong with either.
oracle::Problem read_problem(const std::string& word, const std::string& tensors_path);

/// Refuses a tensors file beside a problem that names none of its tensors.
void require_use(const std::string& tensors_path, const oracle::Problem& problem);

}  // namespace plait::tool
