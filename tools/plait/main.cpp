// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "core/text.h"
#include "plait/error.h"
#include "plait/failure.h"
#include "plait/interrupt.h"
#include "plait/standard_streams.h"
#include "plait/verb.h"

namespace plait::tool {

std::vector<Verb>& registered_verbs() {
  static std::vector<Verb> verbs;
  return verbs;
}

namespace {

void print_usage(std::FILE* file) {
  std::vector<Verb> verbs = registered_verbs();
  std::sort(verbs.begin(), verbs.end(),
            [](const Verb& a, const Verb& b) { return a.name < b.name; });
  std::fprintf(file, "Usage: plait <verb> [options]\n\n");
  for (const Verb& verb : verbs) {
    std::fprintf(file, "  %-8.*s %.*s\n", static_cast<int>(verb.name.size()), verb.name.data(),
                 static_cast<int>(verb.summary.size()), verb.summary.data());
  }
  std::fprintf(file, "\nplait <verb> --help lists the options of a verb.\n");
}

/// Runs `work` and flushes what it printed. Whatever is thrown becomes one line that starts with
/// `name`.
int guarded(const std::string& name, const std::function<int()>& work) {
  try {
    const int code = work();
    flush_output();
    return code;
  } catch (const OutputClosed&) {
    return kExitOutputClosed;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), failure_text(failure).c_str());
    return kExitRefused;
  }
}

/// The words that are no verb.
int run_without_verb(const std::vector<std::string>& args) {
  if (args.empty()) {
    print_usage(stderr);
    return kExitRefused;
  }
  const bool version = args[0] == "--version";
  if (!version && args[0] != "--help" && args[0] != "-h" && args[0] != "help") {
    throw Error(ErrorCode::kInvalidArgument, "verb", quote_text(args[0]),
                "one that plait --help lists");
  }
  if (args.size() > 1) {
    throw Error(ErrorCode::kInvalidArgument, "command line",
                quote_text(args[1]) + " after " + args[0],
                "nothing: plait <verb> --help lists the options of a verb");
  }
  if (version) {
    std::printf("plait %s\n", PLAIT_VERSION);
  } else {
    print_usage(stdout);
  }
  return 0;
}

int run(const std::vector<std::string>& args) {
  for (const Verb& verb : registered_verbs()) {
    if (args.empty() || verb.name != args[0]) continue;
    const std::string name = "plait " + args[0];
    end_on_signals(name);
    return guarded(name, [&] { return verb.run({args.begin() + 1, args.end()}); });
  }
  return guarded("plait", [&] { return run_without_verb(args); });
}

}  // namespace
}  // namespace plait::tool

int main(int argc, char** argv) {
  plait::tool::prepare_standard_streams();
  return plait::tool::run({argv + std::min(argc, 1), argv + argc});
}
