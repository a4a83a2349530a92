// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// From the text of a problem file to a checked Problem. Every refusal is an Error that names the
// field by its path ("kv.last_page_len[2]"), its value and what was expected.
#pragma once

#include <string_view>

#include "oracle/problem.h"
#include "oracle/safetensors.h"
#include "oracle/strict_json.h"

namespace plait::oracle {

/// `tensors` holds what {"name": ...} refers to; null when no file was given.
Problem parse_problem(std::string_view text, const Safetensors* tensors);
Problem problem_from_json(const Json& document, const Safetensors* tensors);

}  // namespace plait::oracle
