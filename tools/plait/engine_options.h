// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The options that say where problems run, the same for every verb that runs some.
#pragma once

#include <cstdint>
#include <string>

#include "check/run_problem.h"
#include "plait/options.h"

namespace plait::tool {

inline constexpr std::int32_t kMostThreads = 1024;

struct EngineWords {
  std::string device = "cpu";
  std::string family = "auto";
  std::int32_t threads = 0;
};

void add_engine_options(CLI::App& app, EngineWords& words, const std::string& devices);

/// Throws Error{kInvalidArgument} for a device that does not exist by its name, and for CPU threads
/// of a GPU.
check::RunOptions run_options(const CLI::App& app, const EngineWords& words);

}  // namespace plait::tool
