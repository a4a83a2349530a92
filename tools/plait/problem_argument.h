// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace plait::tool {

/// Whether a word of the command line is the text of a problem, and not the path of one.
bool is_problem_text(const std::string& word);

/// The text of the problem that a word is or names. Throws Error{kIo}.
std::string problem_text(const std::string& word);

}  // namespace plait::tool
