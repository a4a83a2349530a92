// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// The verbs of the command line tool. Each lies in a file of its own, which registers it:
//
//   const plait::tool::VerbRegistration kRegistration{"info", "what this machine offers", run};
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plait::tool {

/// Exit codes: 0 success, 1 the work was done and something failed, 2 refused; a signal that ends
/// the tool adds its number to 128 (interrupt.h).
inline constexpr int kExitFailed = 1;
inline constexpr int kExitRefused = 2;
inline constexpr int kExitOutputClosed = 141;  // what a shell reports for a closed pipe: 128 + 13

/// What a verb runs; `args` are the words after its name. An Error that escapes is printed on one
/// line and becomes kExitRefused.
using VerbFunction = int (*)(const std::vector<std::string>& args);

struct Verb {
  std::string_view name;
  std::string_view summary;
  VerbFunction run;
};

/// All registered verbs; in no particular order.
std::vector<Verb>& registered_verbs();

struct VerbRegistration {
  VerbRegistration(std::string_view name, std::string_view summary, VerbFunction run) {
    registered_verbs().push_back({name, summary, run});
  }
};

}  // namespace plait::tool
