// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "plait/verb.h"

namespace plait::tool {

/// Parses a verb's words. Returns an exit code where the verb is done already: after --help, or
/// after one line on stderr about a word it does not know.
inline std::optional<int> parse_options(CLI::App& app, std::vector<std::string> args) {
  // CLI11 takes the words last first.
  std::vector<std::string> reversed(args.rbegin(), args.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", app.help().c_str());
    return 0;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
    return kExitRefused;
  }
  return std::nullopt;
}

}  // namespace plait::tool
